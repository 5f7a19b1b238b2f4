"""Between MLX caches and the payload of blocks; all of it on the engine's thread."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from pomona.cache.layout import Dtype, KVLayout
from pomona.workers import layers
from pomona.workers.block_file import BlockError, BlockFormat, Slot
from pomona.workers.layers import UnsupportedCacheError

# NumPy has no bfloat16: its bits travel as uint16 and are never converted.
_HOST: dict[Dtype, str] = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "uint32": "<u4", "int32": "<i4"}


def supports(caches: Sequence[Any]) -> bool:
    """True if every layer's cache is of a kind that can be stored."""
    return bool(caches) and not any(layers.refusal(cache) for cache in layers.leaves(caches))


def layout_of(caches: Sequence[Any]) -> KVLayout:
    """The layout of caches of one row that hold tokens already. Raises UnsupportedCacheError."""
    described = []
    for number, cache in enumerate(layers.leaves(caches)):
        try:
            described.append(layers.describe(cache))
        except UnsupportedCacheError as error:
            raise UnsupportedCacheError(f"cache {number}: {error}") from error
    if not described:
        raise UnsupportedCacheError("there is no cache")
    return KVLayout(tuple(described))


def extract(caches: Sequence[Any], start: int, form: BlockFormat) -> bytearray:
    """The payload of tokens `start` to `start + form.tokens`, copied to the host.

    Raises BlockError if the caches do not have the layout, do not reach so far or, with layers of state, stand
    elsewhere than at the block's end.
    """
    end = start + form.tokens
    if _unlike(caches, form.layout) or not all(layers.holds(cache, end) for cache in layers.leaves(caches)):
        raise BlockError(f"the caches do not hold tokens {start} to {end} in the layout of the model")
    parts = [
        part
        for cache in sorted(layers.leaves(caches), key=layers.is_state)
        for part in (layers.state(cache) if layers.is_state(cache) else layers.slices(cache, start, end))
    ]
    slots = form.slots(end)
    paired = zip(slots, parts, strict=True)
    parts = [part.view(mx.uint16) if slot.dtype == "bfloat16" else part for slot, part in paired]
    mx.eval(parts)  # once for all layers
    payload = bytearray(form.payload_bytes(end))
    for slot, part in zip(slots, parts, strict=True):
        if part.shape != slot.shape:
            raise BlockError(f"{slot.name} has the shape {part.shape}, not {slot.shape}")
        np.copyto(_on_host(slot, payload), np.array(part, copy=False))
    return payload


def _unlike(caches: Sequence[Any], layout: KVLayout) -> bool:
    try:
        return layout_of(caches) != layout
    except UnsupportedCacheError:
        return True


def _on_host(slot: Slot, payload: bytearray | memoryview, before: int = 0) -> np.ndarray[Any, Any]:
    """The array of a slot in a payload whose first `before` bytes are missing; a view."""
    return np.ndarray(slot.shape, _HOST[slot.dtype], payload, slot.start - before)


def restore(
    payloads: Sequence[memoryview], state: memoryview, form: BlockFormat, caches: Sequence[Any], room: int = 0
) -> int:
    """Fill empty caches with the slices of consecutive blocks from token 0 and the state of the last.

    Slices have `room` places in all, or as many as they need. Returns the tokens restored.
    """
    end = form.tokens * len(payloads)
    slots = iter(form.slots(end))
    filled: list[mx.array] = []
    paired = zip(layers.leaves(caches), form.layout.layers, strict=True)
    for cache, layer in sorted(paired, key=lambda each: each[1].is_state):  # in the order of the slots
        if layer.is_state:
            arrays = [_on_device(next(slots), [state], form.slice_bytes) for _ in layer.arrays]
        else:
            arrays = [_on_device(next(slots), payloads, free=room - end) for _ in layer.arrays]
        layers.fill(cache, arrays, end)
        filled += arrays
    mx.eval(filled)
    return end


def _on_device(slot: Slot, payloads: Sequence[memoryview], before: int = 0, free: int = 0) -> mx.array:
    """A slot's array out of each payload, joined along the tokens, with `free` places behind them."""
    parts = [mx.array(_on_host(slot, payload, before)) for payload in payloads]
    if free > 0:
        rows, heads, _, *size = parts[0].shape
        parts.append(mx.zeros((rows, heads, free, *size), dtype=parts[0].dtype))
    whole = mx.concatenate(parts, axis=2) if len(parts) > 1 else parts[0]
    return whole.view(mx.bfloat16) if slot.dtype == "bfloat16" else whole

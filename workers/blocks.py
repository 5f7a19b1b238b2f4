"""Between MLX caches and the payload of blocks; all of it on the engine's thread."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from pomona.cache.layout import KVDtype, KVLayout, LayerLayout
from pomona.workers.block_file import BlockError, BlockFormat

DTYPES: dict[mx.Dtype, KVDtype] = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}

# NumPy has no bfloat16: its bits travel as uint16 and are never converted.
_HOST: dict[KVDtype, str] = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}


def supports(caches: Sequence[Any]) -> bool:
    """True if every layer is a plain KVCache, which can be cut and joined at any token."""
    return bool(caches) and all(type(cache) is KVCache for cache in caches)


def layout_of(caches: Sequence[Any]) -> KVLayout | None:
    """The layout of caches that hold tokens already; None if they are not plain, or not one row of one dtype."""
    if not supports(caches) or any(cache.keys is None for cache in caches):
        return None
    dtypes = {array.dtype for cache in caches for array in (cache.keys, cache.values)}
    dtype = DTYPES.get(dtypes.pop())
    if dtype is None or dtypes or any(cache.keys.shape[0] != 1 for cache in caches):
        return None
    layers = (LayerLayout(cache.keys.shape[1], cache.keys.shape[3], cache.values.shape[3]) for cache in caches)
    return KVLayout(dtype, tuple(layers))


def extract(caches: Sequence[Any], start: int, form: BlockFormat) -> bytearray:
    """The payload of tokens `start` to `start + form.tokens`, copied to the host.

    Raises BlockError if the caches do not have the layout or do not reach so far.
    """
    stop = start + form.tokens
    if layout_of(caches) != form.layout or any(cache.offset < stop for cache in caches):
        raise BlockError(f"the caches do not hold tokens {start} to {stop} in the layout of the model")
    parts = [array[:, :, start:stop, :] for cache in caches for array in (cache.keys, cache.values)]
    if form.layout.dtype == "bfloat16":
        parts = [part.view(mx.uint16) for part in parts]
    mx.eval(parts)  # once for all layers
    payload = bytearray(form.payload_bytes)
    for slot, part in zip(form.slots, parts, strict=True):
        host = np.frombuffer(memoryview(payload)[slot.start : slot.end], _HOST[form.layout.dtype])
        np.copyto(host.reshape(slot.shape), np.array(part, copy=False))
    return payload


def restore(payloads: Sequence[memoryview], form: BlockFormat, caches: Sequence[Any]) -> int:
    """Fill empty caches with consecutive blocks from token 0; returns the tokens restored.

    The caches allocate as they do for computed keys and values.
    """
    dtype = form.layout.dtype
    joined: list[mx.array] = []
    for slot in form.slots:
        parts = [
            mx.array(np.frombuffer(payload[slot.start : slot.end], _HOST[dtype]).reshape(slot.shape))
            for payload in payloads
        ]
        whole = mx.concatenate(parts, axis=2)
        joined.append(whole.view(mx.bfloat16) if dtype == "bfloat16" else whole)
    for number, cache in enumerate(caches):
        cache.update_and_fetch(joined[2 * number], joined[2 * number + 1])
    mx.eval([array for cache in caches for array in (cache.keys, cache.values)])
    return form.tokens * len(payloads)

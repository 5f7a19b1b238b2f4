"""What one layer's cache holds, for each kind of mlx-lm: how it is described, read and filled.

A kind that is not named here is not stored: nobody knows that what would be restored is what was computed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, QuantizedKVCache, RotatingKVCache

from pomona.cache.layout import ArrayLayout, Dtype, LayerKind, LayerLayout

DTYPES: dict[mx.Dtype, Dtype] = {
    mx.float32: "float32",
    mx.float16: "float16",
    mx.bfloat16: "bfloat16",
    mx.uint32: "uint32",
    mx.int32: "int32",
}

KINDS: dict[type, LayerKind] = {
    KVCache: "kv",
    QuantizedKVCache: "quantized",
    RotatingKVCache: "rotating",
    ChunkedKVCache: "chunked",
    ArraysCache: "arrays",
}

PARTS = ("", "_scales", "_biases")
"""Of quantised keys and values."""


class UnsupportedCacheError(ValueError):
    """A cache that cannot be stored; the text says which and why."""


def leaves(caches: Sequence[Any]) -> Iterator[Any]:
    """The caches, with the members of lists in place of the lists."""
    for cache in caches:
        if type(cache) is CacheList:
            yield from leaves(cache.caches)
        else:
            yield cache


def refusal(cache: Any) -> str:
    """Why a cache of this kind is not stored, whatever it holds; empty if it is."""
    if type(cache) not in KINDS:
        return f"{type(cache).__name__} is of no kind that can be restored"
    if type(cache) is RotatingKVCache and cache.keep:
        return f"RotatingKVCache keeps its first {cache.keep} tokens"
    return ""


def is_state(cache: Any) -> bool:
    """True if it holds what follows from one exact number of tokens, and no token can be cut out of it."""
    return KINDS[type(cache)] in ("rotating", "chunked", "arrays")


def describe(cache: Any) -> LayerLayout:
    """The layout of one cache that holds tokens. Raises UnsupportedCacheError."""
    if reason := refusal(cache):
        raise UnsupportedCacheError(reason)
    kind = KINDS[type(cache)]
    if cache.empty():
        raise UnsupportedCacheError(f"{type(cache).__name__} is empty")
    arrays = _named(cache)
    layouts = tuple(_array_layout(name, array, by_token=kind != "arrays") for name, array in arrays)
    match cache:
        case QuantizedKVCache():
            return LayerLayout(kind, layouts, group_size=cache.group_size, bits=cache.bits)
        case RotatingKVCache():
            return LayerLayout(kind, layouts, span=cache.max_size)
        case ChunkedKVCache():
            return LayerLayout(kind, layouts, span=cache.chunk_size)
        case _:
            return LayerLayout(kind, layouts)


def _named(cache: Any) -> list[tuple[str, Any]]:
    match cache:
        case ArraysCache():
            return [(f"state{number}", array) for number, array in enumerate(cache.cache)]
        case QuantizedKVCache():
            held = (("keys", cache.keys), ("values", cache.values))
            return [(name + part, array) for name, whole in held for part, array in zip(PARTS, whole, strict=True)]
        case _:
            return [("keys", cache.keys), ("values", cache.values)]


def _array_layout(name: str, array: Any, *, by_token: bool) -> ArrayLayout:
    if array is None:
        raise UnsupportedCacheError(f"{name} is not set by every forward")
    dtype = DTYPES.get(array.dtype)
    if dtype is None:
        raise UnsupportedCacheError(f"{name} is of {array.dtype}")
    shape = tuple(array.shape)
    if not shape or shape[0] != 1 or (by_token and len(shape) != 4):
        raise UnsupportedCacheError(f"{name} has the shape {shape}, which is not one row's")
    return ArrayLayout(name, dtype, (*shape[:2], 1, *shape[3:]) if by_token else shape)


def fits(cache: Any, layout: LayerLayout) -> bool:
    """True if an empty cache can be filled with what the layout describes."""
    if refusal(cache) or KINDS[type(cache)] != layout.kind:
        return False
    match cache:
        case ArraysCache():
            return len(cache.cache) == len(layout.arrays)
        case RotatingKVCache():
            return bool(cache.max_size == layout.span)
        case ChunkedKVCache():
            return bool(cache.chunk_size == layout.span)
        case QuantizedKVCache():
            return bool((cache.group_size, cache.bits) == (layout.group_size, layout.bits))
        case _:
            return True


def empty(cache: Any) -> bool:
    return bool(cache.empty())


def holds(cache: Any, tokens: int) -> bool:
    """True if slices reach to `tokens`, or state is that of `tokens`, as far as the cache knows its tokens."""
    if empty(cache):
        return False
    match cache:
        case ArraysCache():
            return True
        case RotatingKVCache() | ChunkedKVCache():
            return bool(cache.offset == tokens)
        case _:
            return bool(cache.offset >= tokens)


def finite(caches: Sequence[Any], start: int, stop: int) -> bool:
    """False if what was computed for tokens `start` to `stop` is no number somewhere; waits for it.

    The last layer tells: it is fed by all others, and so are the tokens behind.
    """
    *_, last = leaves(caches)
    arrays = state(last) if is_state(last) else slices(last, start, stop)
    return all(mx.isfinite(array).all().item() for array in arrays if mx.issubdtype(array.dtype, mx.floating))


def slices(cache: Any, start: int, stop: int) -> list[mx.array]:
    """What a layer of slices holds for tokens `start` to `stop`, in the order of its layout; views."""
    return [array[..., start:stop, :] for _, array in _named(cache)]


def state(cache: Any) -> list[mx.array]:
    """What a layer of state needs to go on from where it is, in the order of its layout; windows oldest first."""
    match cache:
        case ArraysCache():
            return list(cache.cache)
        case RotatingKVCache():
            kept = min(cache.max_size, cache.offset)
            ordered = [cache._temporal_order(array) for array in (cache.keys, cache.values)]
            return [array[..., array.shape[2] - kept :, :] for array in ordered]
        case _:
            # What is in front of the chunk is trimmed before the next forward.
            stop = cache.offset - cache.start_position
            start = max(0, stop - cache.chunk_size)
            return [array[..., start:stop, :] for array in (cache.keys, cache.values)]


def fill(cache: Any, arrays: Sequence[mx.array], tokens: int) -> None:
    """Make an empty cache go on behind `tokens` tokens; it writes to handles of its own, never to `arrays`.

    `arrays` are what `slices(cache, 0, tokens)` or `state(cache)` gave.
    """
    own = [array[...] for array in arrays]
    match cache:
        case ArraysCache():
            cache.cache = own
        case QuantizedKVCache():
            cache.keys, cache.values, cache.offset = own[:3], own[3:], tokens
        case _:
            cache.keys, cache.values = own
            cache.offset = tokens
    match cache:
        case RotatingKVCache():
            cache._idx = own[0].shape[2]
        case ChunkedKVCache():
            cache.start_position = tokens - own[0].shape[2]

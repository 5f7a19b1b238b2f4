"""A model's KV cost, read off the shapes that its caches have after one short forward."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, RotatingKVCache, make_prompt_cache

from pomona.workers.kv_cost import KVCost, KVWindow

PROBE = 8
"""Tokens of the forward; more than one, so that no cache rounds its buffer up in a way of its own."""


def measure_kv_cost(model: Any, prefill_chunk: int) -> KVCost:
    """`prefill_chunk`: tokens of one forward, by which a bounded layer overshoots its window until the next one."""
    caches = make_prompt_cache(model)
    mx.eval(model(mx.zeros((1, PROBE), dtype=mx.int32), cache=caches))
    return kv_cost(caches, prefill_chunk)


def kv_cost(caches: list[Any], prefill_chunk: int) -> KVCost:
    """The cost of one row by caches of one row, one a layer, that hold `PROBE` tokens."""
    fixed, per_token, windows = 0, 0, Counter[int]()
    for cache in _leaves(caches):
        match cache:
            case ArraysCache():
                fixed += int(cache.nbytes)
            case RotatingKVCache():
                windows[cache.max_size + prefill_chunk] += _bytes_per_token(cache)
            case ChunkedKVCache():
                windows[cache.chunk_size + prefill_chunk] += _bytes_per_token(cache)
            case _:
                per_token += _bytes_per_token(cache)
    return KVCost(
        fixed=fixed,
        per_token=per_token,
        windows=tuple(KVWindow(tokens, size) for tokens, size in sorted(windows.items()) if size),
    )


def _leaves(caches: list[Any]) -> Iterator[Any]:
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from _leaves(list(cache.caches))
        else:
            yield cache


def _bytes_per_token(cache: Any) -> int:
    """Keys and values are arrays [1, heads, tokens, size], or tuples of such where they are quantised.

    A kind without keys and values is taken to grow with each token by what the probe left in it.
    """
    arrays = [*_arrays(getattr(cache, "keys", None)), *_arrays(getattr(cache, "values", None))]
    if arrays:
        return sum(-(-array.nbytes // array.shape[-2]) for array in arrays)
    return -(-int(cache.nbytes) // PROBE)


def _arrays(held: Any) -> list[mx.array]:
    if held is None:
        return []
    return list(held) if isinstance(held, (tuple, list)) else [held]

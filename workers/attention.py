"""Attention over rows in slots, one call for each group of like length; all other caches get mlx-lm's own."""

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models import base
from mlx_lm.models.cache import KVCache, make_prompt_cache

from pomona.workers.models import cpu
from pomona.workers.models.substitute import substitute
from pomona.workers.slots import NotApart, SlotCache, SlotLengths


def grouped_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """What mlx-lm's `scaled_dot_product_attention` computes, without most of what pads short rows.

    Queries are [rows, heads, tokens, head_dim], keys and values [rows, kv heads, reach, head_dim]; `mask` is boolean
    or additive and broadcasts to [rows, heads, tokens, reach], "causal", or None; `sinks` is [heads]. Rows are grouped
    if `cache` is a `SlotCache` and the keys are all that it holds. There a model's own "causal", or None for one token,
    stands for what each row may look at. Raises `NotApart` for rows apart and keys that are not what `cache` returned.
    """
    if isinstance(cache, SlotCache) and _is_whole(cache, keys):
        shared, tokens = cache.shared, queries.shape[2]
        if isinstance(mask, str) or (mask is None and tokens == 1):
            mask = shared.mask(tokens, None)
        groups = shared.groups(tokens)
        if shared.apart or len(groups) > 1:
            parts = [
                _attend(queries[group.start : group.stop], *cache.part(group), cache, scale, part, sinks)
                for group, part in zip(groups, shared.group_masks(mask, tokens), strict=True)
            ]
            return mx.concatenate(parts)
    return _attend(queries, keys, values, cache, scale, mask, sinks)


def _is_whole(cache: SlotCache, keys: mx.array) -> bool:
    """True if `keys` are all that the cache holds."""
    if cache.shared.apart:
        if keys is not cache.fetched:
            raise NotApart
        return True
    return keys is cache.fetched and keys.shape[0] == len(cache.shared.lengths)


def lets_rows_stand_apart(model: Module) -> bool:
    """True if all that a model does with what its caches return is to hand it to `grouped_attention`.

    One forward of one token shows it; nothing is computed.
    """
    plain = make_prompt_cache(model)
    if any(type(cache) is not KVCache for cache in plain):
        return False
    shared = SlotLengths()
    shared.lengths, shared.apart = [0], 1
    shared.begin()
    caches = [SlotCache(shared) for _ in plain]
    for cache in caches:
        cache.join_apart(KVCache())
    try:
        model(mx.array([[0]], dtype=mx.int32), cache=caches)
    except NotApart:
        return False
    return all(cache.attended for cache in caches)


def _attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None,
) -> mx.array:
    """mlx-lm's own, save for several tokens on a CPU."""
    plain = sinks is None and queries.dtype == mx.float32 and not hasattr(cache, "bits")
    if plain and queries.shape[2] > 1 and mx.default_device() == mx.cpu:
        return cpu.attention(queries, keys, values, scale=scale, mask=mask)
    output: mx.array = base.scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)
    return output


def install(model: Module) -> None:
    """Give `model`'s layers the grouped attention."""
    substitute(model, "scaled_dot_product_attention", base.scaled_dot_product_attention, grouped_attention)

"""Attention over rows in slots, one call for each group of like length; all other caches get mlx-lm's own."""

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models import base

from pomona.workers.models import cpu
from pomona.workers.models.substitute import substitute
from pomona.workers.slots import SlotCache


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
    stands for what each row may look at.
    """
    if isinstance(cache, SlotCache) and keys.shape[0] == len(cache.shared.lengths):
        shared, tokens = cache.shared, queries.shape[2]
        if keys.shape[2] == shared.reach(tokens):
            if isinstance(mask, str) or (mask is None and tokens == 1):
                mask = shared.mask(tokens, None)
            if len(groups := shared.groups(tokens)) > 1:
                parts = [
                    _attend(
                        queries[group.start : group.stop],
                        keys[group.start : group.stop, :, : group.reach],
                        values[group.start : group.stop, :, : group.reach],
                        cache,
                        scale,
                        part,
                        sinks,
                    )
                    for group, part in zip(groups, shared.group_masks(mask, tokens), strict=True)
                ]
                return mx.concatenate(parts)
    return _attend(queries, keys, values, cache, scale, mask, sinks)


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

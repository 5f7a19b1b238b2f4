"""Log-probabilities that clients ask for: of the raw distribution, before penalties, masks, filters and temperature."""

import math
from collections.abc import Sequence

import mlx.core as mx

from pomona.workers.sampling.filters import highest, power_of_e

LEAST = -9999.0
"""Stands for the log-probability of a token that the model itself makes impossible; JSON has no infinity."""


def raw_logprobs(
    raw: mx.array, tokens: mx.array, wanted: Sequence[int | None]
) -> tuple[mx.array | None, mx.array | None, mx.array | None]:
    """The tokens' own [rows], the leaders' ids [rows, widest] and theirs, for raw float32 logits.

    `wanted` is a number of leaders for each row. None, all of it, where no row asks; None for the leaders where no
    row wants any.
    """
    if all(each is None for each in wanted):
        return None, None, None
    shifted = raw - mx.max(raw, axis=-1, keepdims=True)
    logprobs = mx.maximum(shifted - mx.log(power_of_e(shifted).sum(axis=-1, keepdims=True)), LEAST)
    chosen = mx.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]
    width = max(each or 0 for each in wanted)
    if width == 0:
        return chosen, None, None
    return chosen, *_leaders(logprobs, width)


def _leaders(logprobs: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The `count` most probable tokens of each row and their log-probabilities, most probable first."""
    count = min(count, logprobs.shape[-1])
    kept = mx.where(highest(logprobs, [count] * logprobs.shape[0]), logprobs, -math.inf)
    top = mx.sort(mx.argpartition(-kept, kth=count - 1, axis=-1)[:, :count], axis=-1)
    values = mx.take_along_axis(kept, top, axis=-1)
    mine, other = values[:, :, None], values[:, None, :]
    earlier = mx.arange(count)[None, None, :] < mx.arange(count)[None, :, None]
    rank = ((other > mine) | ((other == mine) & earlier)).sum(axis=-1)
    order = mx.argsort(rank, axis=-1)
    return mx.take_along_axis(top, order, axis=-1), mx.take_along_axis(values, order, axis=-1)

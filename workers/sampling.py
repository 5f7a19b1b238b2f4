"""The law of sampling, for every row of a batch at once; each row has its own parameters.

Order: repetition penalty, presence and frequency penalties and logit bias on raw logits; then mlx-lm's filters on
untempered log-probabilities (top-p, min-p, top-k); temperature last. Temperature 0 is argmax. Among equals the lowest
ids come first everywhere, so that no neighbour in the batch decides a tie.
A draw inverts the cumulative distribution in vocabulary order with one number keyed by (seed, position), so a row's
token depends on nothing but its own logits and parameters.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx

from pomona.workers.messages import Sampling
from pomona.workers.randomness import Purpose, uniform

COLDEST = 1e-30
"""Temperatures above 0 act as at least this one: float32 has no room below, and the draw is the limit already."""


class Adjustment(NamedTuple):
    """What a row does to raw logits, as aligned lists: token ids, divisors for repeated ones, amounts to add."""

    tokens: list[int]
    repetition: list[float]
    add: list[float]


class RowLaw(NamedTuple):
    """How one row draws its token at `position`, the number of output tokens before it."""

    sampling: Sampling
    position: int
    adjustment: Adjustment | None
    logprobs: int | None


class Draws(NamedTuple):
    """Arrays of one step, not evaluated yet."""

    tokens: mx.array
    """int32 [rows]."""
    finite: mx.array
    """bool [rows]: false where a raw logit was NaN or infinite."""
    chosen: mx.array | None
    """float32 [rows]: log-probability of the token in the raw distribution; None if no row asks."""
    top_tokens: mx.array | None
    """int32 [rows, widest], most probable first."""
    top_logprobs: mx.array | None


def draw(logits: mx.array, rows: Sequence[RowLaw]) -> Draws:
    """One token a row from raw logits [rows, vocabulary]."""
    raw = logits.astype(mx.float32)
    finite = mx.isfinite(raw.sum(axis=-1))
    adjusted = _adjust(raw, [row.adjustment for row in rows])
    hot = [index for index, row in enumerate(rows) if row.sampling.temperature > 0]
    if not hot:
        tokens = mx.argmax(adjusted, axis=-1).astype(mx.int32)
    elif len(hot) == len(rows):
        tokens = _sample(adjusted, rows)
    else:
        where = mx.array(hot)
        tokens = mx.argmax(adjusted, axis=-1).astype(mx.int32)
        tokens[where] = _sample(adjusted[where], [rows[index] for index in hot])
    return Draws(tokens, finite, *_logprobs(raw, tokens, [row.logprobs for row in rows]))


def _adjust(logits: mx.array, adjustments: Sequence[Adjustment | None]) -> mx.array:
    touched = [(index, each) for index, each in enumerate(adjustments) if each is not None and each.tokens]
    if not touched:
        return logits
    width = max(len(each.tokens) for _, each in touched)

    def padded(values: list[list[float]]) -> list[list[float]]:
        # The first entry repeated: the same value is written twice to the same place.
        return [row + [row[0]] * (width - len(row)) for row in values]

    rows = mx.array([index for index, _ in touched])
    tokens = mx.array(
        [each.tokens + [each.tokens[0]] * (width - len(each.tokens)) for _, each in touched], dtype=mx.int32
    )
    repetition = mx.array(padded([each.repetition for _, each in touched]))
    add = mx.array(padded([each.add for _, each in touched]))
    part = logits[rows]
    values = mx.take_along_axis(part, tokens, axis=-1)
    values = mx.where(values > 0, values / repetition, values * repetition) + add
    part = mx.put_along_axis(part, tokens, values, axis=-1)
    if len(touched) == len(adjustments):
        return part
    return mx.put_along_axis(logits, mx.broadcast_to(rows[:, None], part.shape), part, axis=0)


def _sample(logits: mx.array, rows: Sequence[RowLaw]) -> mx.array:
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    laws = [row.sampling for row in rows]
    logprobs = _where(logprobs, laws, [law.top_p < 1 for law in laws], _top_p)
    logprobs = _where(logprobs, laws, [law.min_p > 0 for law in laws], _min_p)
    logprobs = _where(logprobs, laws, [0 < law.top_k < logits.shape[-1] for law in laws], _top_k)
    temperature = _column([max(law.temperature, COLDEST) for law in laws])
    return _invert(
        mx.softmax(logprobs / temperature, axis=-1, precise=True),
        mx.array([uniform(row.sampling.seed, row.position, Purpose.SAMPLE) for row in rows]),
    )


def _where(
    logprobs: mx.array,
    laws: Sequence[Sampling],
    wanted: Sequence[bool],
    apply: Callable[[mx.array, Sequence[Sampling]], mx.array],
) -> mx.array:
    """The filter on the rows that want it; what it costs is theirs alone."""
    if all(wanted):
        return apply(logprobs, laws)
    if any(wanted):
        rows = [index for index, each in enumerate(wanted) if each]
        index = mx.array(rows)
        logprobs[index] = apply(logprobs[index], [laws[row] for row in rows])
    return logprobs


def _invert(probabilities: mx.array, numbers: mx.array) -> mx.array:
    """The first token at which the cumulative distribution exceeds the row's number; never one of probability 0.

    A parallel sum may go back by a rounding; that neither lets a token of probability 0 in nor leaves none.
    """
    reached = mx.where(probabilities > 0, mx.cumsum(probabilities, axis=-1), 0)
    total = mx.max(reached, axis=-1, keepdims=True)
    level = mx.minimum(numbers[:, None] * total, total * (1 - 2.0**-23))
    return mx.argmax(reached > level, axis=-1).astype(mx.int32)


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(list(values), dtype=mx.float32)[:, None]


def _top_p(logprobs: mx.array, rows: Sequence[Sampling]) -> mx.array:
    ordered = mx.sort(logprobs, axis=-1)
    mass = mx.exp(ordered)
    above = mx.cumsum(mass, axis=-1, reverse=True, inclusive=False)
    total = above[:, :1] + mass[:, :1]
    dropped = (above >= _column([row.top_p for row in rows]) * total).sum(axis=-1, keepdims=True)
    dropped = mx.minimum(dropped, logprobs.shape[-1] - 1)  # top_p 0 keeps the most probable token
    return mx.where(logprobs < mx.take_along_axis(ordered, dropped, axis=-1), -math.inf, logprobs)


def _min_p(logprobs: mx.array, rows: Sequence[Sampling]) -> mx.array:
    floor = mx.max(logprobs, axis=-1, keepdims=True) + _column([math.log(row.min_p) for row in rows])
    return mx.where(logprobs < floor, -math.inf, logprobs)


def _top_k(logprobs: mx.array, rows: Sequence[Sampling]) -> mx.array:
    return mx.where(_highest(logprobs, [row.top_k for row in rows]), logprobs, -math.inf)


def _highest(values: mx.array, counts: Sequence[int]) -> mx.array:
    """Boolean [rows, vocabulary]: each row's `counts` highest values, exactly so many."""
    widest = max(counts)
    leaders = -mx.sort(mx.partition(-values, kth=widest - 1, axis=-1)[:, :widest], axis=-1)
    count = mx.array(list(counts), dtype=mx.int32)[:, None]
    least = mx.take_along_axis(leaders, count - 1, axis=-1)
    above, equal = values > least, values == least
    room = count - above.sum(axis=-1, keepdims=True)
    return above | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room))


def _leaders(logprobs: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The `count` most probable tokens of each row and their log-probabilities, most probable first."""
    count = min(count, logprobs.shape[-1])
    kept = mx.where(_highest(logprobs, [count] * logprobs.shape[0]), logprobs, -math.inf)
    top = mx.sort(mx.argpartition(-kept, kth=count - 1, axis=-1)[:, :count], axis=-1)
    values = mx.take_along_axis(kept, top, axis=-1)
    mine, other = values[:, :, None], values[:, None, :]
    earlier = mx.arange(count)[None, None, :] < mx.arange(count)[None, :, None]
    rank = ((other > mine) | ((other == mine) & earlier)).sum(axis=-1)
    order = mx.argsort(rank, axis=-1)
    return mx.take_along_axis(top, order, axis=-1), mx.take_along_axis(values, order, axis=-1)


def _logprobs(
    raw: mx.array, tokens: mx.array, wanted: Sequence[int | None]
) -> tuple[mx.array | None, mx.array | None, mx.array | None]:
    if all(each is None for each in wanted):
        return None, None, None
    logprobs = raw - mx.logsumexp(raw, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]
    width = max(each or 0 for each in wanted)
    if width == 0:
        return chosen, None, None
    return chosen, *_leaders(logprobs, width)

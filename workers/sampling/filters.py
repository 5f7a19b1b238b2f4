"""mlx-lm's filters on untempered log-probabilities, in its order: top-p, min-p, XTC, top-k.

Each works on all rows that want it at once, with their own parameters; what it costs is theirs alone. Among equals the
lowest ids come first, so that no neighbour in the batch decides a tie.
"""

import math
from collections.abc import Callable, Sequence

import mlx.core as mx

from pomona.workers.randomness import Purpose, uniform
from pomona.workers.sampling.law import RowLaw

LOG2_E = 1 / math.log(2)


def filtered(logprobs: mx.array, rows: Sequence[RowLaw]) -> mx.array:
    """float32 [rows, vocabulary] in and out: what is filtered out is -inf.

    They need not be normalised: the greatest of each row is 0. May write to its argument.
    """
    laws, vocabulary = [row.sampling for row in rows], logprobs.shape[-1]
    logprobs = _where(logprobs, rows, [law.top_p < 1 for law in laws], _top_p)
    logprobs = _where(logprobs, rows, [law.min_p > 0 for law in laws], _min_p)
    logprobs = _where(logprobs, rows, [removes_top_choices(row) for row in rows], _xtc)
    return _where(logprobs, rows, [0 < law.top_k < vocabulary for law in laws], _top_k)


def removes_top_choices(row: RowLaw) -> bool:
    """Whether XTC is at work at the row's position; its number is the position's own."""
    chance = row.sampling.xtc_probability
    return chance > 0 and uniform(row.sampling.seed, row.position, Purpose.XTC) < chance


def column(values: Sequence[float]) -> mx.array:
    """float32 [rows, 1]."""
    return mx.array(list(values), dtype=mx.float32)[:, None]


def power_of_e(values: mx.array) -> mx.array:
    """`exp` out of powers of two, of which a CPU computes several at once."""
    return mx.power(2.0, values * LOG2_E)


def highest(values: mx.array, counts: Sequence[int]) -> mx.array:
    """Boolean [rows, vocabulary]: each row's `counts` highest values, exactly so many."""
    widest = max(counts)
    leaders = -mx.sort(mx.partition(-values, kth=widest - 1, axis=-1)[:, :widest], axis=-1)
    count = mx.array(list(counts), dtype=mx.int32)[:, None]
    least = mx.take_along_axis(leaders, count - 1, axis=-1)
    above, equal = values > least, values == least
    room = count - above.sum(axis=-1, keepdims=True)
    return above | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room))


def _where(
    logprobs: mx.array,
    rows: Sequence[RowLaw],
    wanted: Sequence[bool],
    apply: Callable[[mx.array, Sequence[RowLaw]], mx.array],
) -> mx.array:
    if all(wanted):
        return apply(logprobs, rows)
    if any(wanted):
        wanting = [index for index, each in enumerate(wanted) if each]
        where = mx.array(wanting)
        logprobs[where] = apply(logprobs[where], [rows[index] for index in wanting])
    return logprobs


def _top_p(logprobs: mx.array, rows: Sequence[RowLaw]) -> mx.array:
    ordered = mx.sort(logprobs, axis=-1)
    mass = power_of_e(ordered)
    above = mx.cumsum(mass, axis=-1, reverse=True, inclusive=False)
    total = above[:, :1] + mass[:, :1]
    dropped = (above >= column([row.sampling.top_p for row in rows]) * total).sum(axis=-1, keepdims=True)
    dropped = mx.minimum(dropped, logprobs.shape[-1] - 1)  # top_p 0 keeps the most probable token
    return mx.where(logprobs < mx.take_along_axis(ordered, dropped, axis=-1), -math.inf, logprobs)


def _min_p(logprobs: mx.array, rows: Sequence[RowLaw]) -> mx.array:
    floor = mx.max(logprobs, axis=-1, keepdims=True) + column([math.log(row.sampling.min_p) for row in rows])
    return mx.where(logprobs < floor, -math.inf, logprobs)


def _xtc(logprobs: mx.array, rows: Sequence[RowLaw]) -> mx.array:
    """Leaves out every token above the threshold but the least probable of them."""
    weights = power_of_e(logprobs)
    probabilities = weights / weights.sum(axis=-1, keepdims=True)
    threshold = column([row.sampling.xtc_threshold for row in rows])
    least = mx.min(mx.where(probabilities > threshold, probabilities, math.inf), axis=-1, keepdims=True)
    removed = probabilities > least
    # Ids that no logit has, as a client's stop token may be one, would be written outside the logits.
    spared = [[token for token in row.spared if token < logprobs.shape[-1]] for row in rows]
    width = max(map(len, spared))
    if width:
        # A row that spares fewer repeats its first, or names token 0 without sparing it.
        tokens = [own + (own[:1] or [0]) * (width - len(own)) for own in spared]
        where = mx.array(tokens, dtype=mx.int32)
        spares = mx.array([bool(own) for own in spared])[:, None]
        removed = mx.put_along_axis(removed, where, mx.take_along_axis(removed, where, axis=-1) & ~spares, axis=-1)
    return mx.where(removed, -math.inf, logprobs)


def _top_k(logprobs: mx.array, rows: Sequence[RowLaw]) -> mx.array:
    return mx.where(highest(logprobs, [row.sampling.top_k for row in rows]), logprobs, -math.inf)

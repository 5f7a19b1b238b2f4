"""The law of sampling, for every row of a batch at once; each row has its own parameters.

Order: repetition penalty, presence and frequency penalties and logit bias on raw logits, then the mask (`adjust`);
filters on untempered log-probabilities (`filters`); temperature last. Temperature 0 is argmax, and the lowest id among
equals. A draw inverts the cumulative distribution in vocabulary order with one number keyed by (seed, position), so a
row's token depends on nothing but its own logits and parameters. `reference` states the same in NumPy.
"""

from collections.abc import Sequence

import mlx.core as mx

from pomona.workers.randomness import Purpose, uniform
from pomona.workers.sampling.adjust import adjust
from pomona.workers.sampling.draws import Draws
from pomona.workers.sampling.filters import column, filtered, power_of_e
from pomona.workers.sampling.invert import sample
from pomona.workers.sampling.law import RowLaw
from pomona.workers.sampling.logprobs import raw_logprobs
from pomona.workers.sampling.verify import verify

COLDEST = 1e-30
"""Temperatures above 0 act as at least this one: float32 has no room below, and the draw is the limit already."""


def draw(logits: mx.array, rows: Sequence[RowLaw], distributions: mx.array | None = None) -> Draws:
    """One token a row from raw logits [rows, vocabulary].

    `distributions` are float32 [drafts, vocabulary], each sums to 1: what the rows' `drafted` tokens were drawn from.
    Raises ValueError for drafted tokens without distributions of the logits' width.
    """
    raw = logits.astype(mx.float32)
    adjusted = adjust(raw, rows)
    finite = _finite(raw) if adjusted is raw else _finite(raw) & _finite(adjusted)
    hot = [index for index, row in enumerate(rows) if row.sampling.temperature > 0]
    sound: mx.array | None = None
    if not hot:
        tokens = _greedy(adjusted)
    elif len(hot) == len(rows):
        tokens, sound = _hot(adjusted, rows, distributions)
    else:
        where = mx.array(hot)
        tokens = _greedy(adjusted)
        tokens[where], part = _hot(adjusted[where], [rows[index] for index in hot], distributions)
        if part is not None:
            sound = mx.ones(len(rows), dtype=mx.bool_)
            sound[where] = part
    if sound is not None:
        finite = finite & sound
    return Draws(tokens, finite, *raw_logprobs(raw, tokens, [row.logprobs for row in rows]), logits, sound)


def distribution(logits: mx.array, rows: Sequence[RowLaw]) -> mx.array:
    """float32 [rows, vocabulary]: what `draw` draws from, as far as the rows' numbers are not drawn yet.

    XTC's is: it is at work at a position or not. Rows of temperature 0 have all of it on one token.
    """
    adjusted = adjust(logits.astype(mx.float32), rows)
    hot = [index for index, row in enumerate(rows) if row.sampling.temperature > 0]
    if len(hot) == len(rows):
        return _normalised(_weights(adjusted, rows))
    probabilities = (mx.arange(adjusted.shape[-1]) == _greedy(adjusted)[:, None]).astype(mx.float32)
    if hot:
        where = mx.array(hot)
        probabilities[where] = _normalised(_weights(adjusted[where], [rows[index] for index in hot]))
    return probabilities


def _finite(logits: mx.array) -> mx.array:
    """False for a NaN, a +inf or nothing but -inf: the greatest of a row shows each of them."""
    return mx.isfinite(mx.max(logits, axis=-1))


def _greedy(adjusted: mx.array) -> mx.array:
    return mx.argmax(adjusted, axis=-1).astype(mx.int32)


def _weights(adjusted: mx.array, rows: Sequence[RowLaw]) -> mx.array:
    """[rows, vocabulary], 1 for the most probable token of a row."""
    logprobs = filtered(adjusted - mx.max(adjusted, axis=-1, keepdims=True), rows)
    return power_of_e(logprobs / column([max(row.sampling.temperature, COLDEST) for row in rows]))


def _normalised(weights: mx.array) -> mx.array:
    return weights / weights.sum(axis=-1, keepdims=True)


def _hot(
    adjusted: mx.array, rows: Sequence[RowLaw], distributions: mx.array | None
) -> tuple[mx.array, mx.array | None]:
    """Tokens, and false for drafts that cannot be; None if nothing was drafted."""
    weights = _weights(adjusted, rows)
    drafted = [index for index, row in enumerate(rows) if row.drafted is not None]
    if not drafted:
        return _plain(weights, rows), None
    if distributions is None or distributions.shape[-1] != adjusted.shape[-1]:
        raise ValueError(f"drafted tokens need distributions over the {adjusted.shape[-1]} ids of the logits")
    if len(drafted) == len(rows):
        return verify(_normalised(weights), rows, distributions)
    where, undrafted = mx.array(drafted), [index for index, row in enumerate(rows) if row.drafted is None]
    others = mx.array(undrafted)
    tokens, sound = mx.zeros(len(rows), dtype=mx.int32), mx.ones(len(rows), dtype=mx.bool_)
    tokens[where], sound[where] = verify(_normalised(weights[where]), [rows[index] for index in drafted], distributions)
    tokens[others] = _plain(weights[others], [rows[index] for index in undrafted])
    return tokens, sound


def _plain(weights: mx.array, rows: Sequence[RowLaw]) -> mx.array:
    # Never normalised, so that no draft of a neighbour decides a rounding.
    return sample(weights, [uniform(row.sampling.seed, row.position, Purpose.SAMPLE) for row in rows])

"""Raw logits to those that are drawn from: penalties and bias, then the mask. Rows that want neither are untouched."""

from collections.abc import Sequence

import mlx.core as mx

from pomona.workers.sampling.law import Adjustment, RowLaw
from pomona.workers.sampling.mask import masked


def adjust(logits: mx.array, rows: Sequence[RowLaw]) -> mx.array:
    """float32 [rows, vocabulary] in and out; the very same array if no row wants anything."""
    adjustments = [
        (index, _within(row.adjustment, logits.shape[-1])) for index, row in enumerate(rows) if row.adjustment
    ]
    penalised = [(index, adjustment) for index, adjustment in adjustments if adjustment.tokens]
    guided = [(index, row.mask) for index, row in enumerate(rows) if row.mask is not None]
    if penalised:
        where, part = _taken(logits, [index for index, _ in penalised])
        logits = _put(logits, where, _penalised(part, [adjustment for _, adjustment in penalised]))
    if guided:
        where, part = _taken(logits, [index for index, _ in guided])
        logits = _put(logits, where, masked(part, [mask for _, mask in guided]))
    return logits


def _within(adjustment: Adjustment, vocabulary: int) -> Adjustment:
    """Without ids that no logit has, as a client's stop token may be one: they would be written outside the logits."""
    if max(adjustment.tokens, default=0) < vocabulary:
        return adjustment
    tokens, repetition, add = adjustment
    held = [index for index, token in enumerate(tokens) if token < vocabulary]
    return Adjustment([tokens[i] for i in held], [repetition[i] for i in held], [add[i] for i in held])


def _taken(logits: mx.array, rows: Sequence[int]) -> tuple[mx.array | None, mx.array]:
    """Where the rows are, None if they are all, and their part of the logits."""
    if len(rows) == logits.shape[0]:
        return None, logits
    where = mx.array(list(rows))
    return where, logits[where]


def _put(logits: mx.array, where: mx.array | None, part: mx.array) -> mx.array:
    if where is None:
        return part
    return mx.put_along_axis(logits, mx.broadcast_to(where[:, None], part.shape), part, axis=0)


def _penalised(logits: mx.array, adjustments: Sequence[Adjustment]) -> mx.array:
    width = max(len(each.tokens) for each in adjustments)

    def padded(values: Sequence[list[float]]) -> mx.array:
        # The first entry repeated: the same value is written twice to the same place.
        return mx.array([row + [row[0]] * (width - len(row)) for row in values])

    tokens = mx.array(
        [each.tokens + [each.tokens[0]] * (width - len(each.tokens)) for each in adjustments], dtype=mx.int32
    )
    repetition = padded([each.repetition for each in adjustments])
    values = mx.take_along_axis(logits, tokens, axis=-1)
    values = mx.where(values > 0, values / repetition, values * repetition) + padded([each.add for each in adjustments])
    return mx.put_along_axis(logits, tokens, values, axis=-1)

"""A token from a distribution and one number: the inverse of the cumulative distribution, in vocabulary order."""

from collections.abc import Sequence

import mlx.core as mx


def sample(probabilities: mx.array, numbers: Sequence[float]) -> mx.array:
    """int32 [rows]: the first token at which the cumulative distribution exceeds the row's number, in [0, 1).

    `probabilities` [rows, vocabulary] need not sum to 1; a token of probability 0 is never drawn unless all are 0. A
    parallel sum may go back by a rounding; that neither lets a token of probability 0 in nor leaves none.
    """
    reached = mx.where(probabilities > 0, mx.cumsum(probabilities, axis=-1), 0)
    total = mx.max(reached, axis=-1, keepdims=True)
    level = mx.minimum(mx.array(list(numbers))[:, None] * total, total * (1 - 2.0**-23))
    return mx.argmax(reached > level, axis=-1).astype(mx.int32)

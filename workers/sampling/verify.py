"""Drafts that were drawn from distributions of their own, kept or replaced so that the rows' own laws come out.

A draft x ~ q is kept with probability min(1, p(x) / q(x)), else a token is drawn from what p has above q, normalised
(Leviathan, Kalman, Matias 2023; Chen et al. 2023). `speculation.exact` states the same in NumPy.
"""

import math
from collections.abc import Sequence

import mlx.core as mx

from pomona.workers.randomness import Purpose, uniform
from pomona.workers.sampling.invert import sample
from pomona.workers.sampling.law import RowLaw


def verify(probabilities: mx.array, rows: Sequence[RowLaw], distributions: mx.array) -> tuple[mx.array, mx.array]:
    """int32 [rows], the draft or another token; bool [rows], false where its distribution cannot have given the draft.

    Every row is `drafted`; `probabilities` [rows, vocabulary] are its own, `distributions` those of the drafts.
    """
    drafts = [row.drafted for row in rows if row.drafted is not None]
    tokens = mx.array([draft.token for draft in drafts], dtype=mx.int32)
    origins = [draft.row for draft in drafts]
    if origins != list(range(distributions.shape[0])):
        distributions = distributions[mx.array(origins)]
    acceptance, possible = acceptances(probabilities, distributions, tokens)
    left = residuals(probabilities, distributions)
    coins = mx.array([_coin(row) for row in rows])
    numbers = [uniform(row.sampling.seed, row.position, Purpose.RESIDUAL) for row in rows]
    # The greatest shows a NaN anywhere.
    sound = possible & mx.isfinite(mx.max(distributions, axis=-1))
    return mx.where(coins < acceptance, tokens, sample(left, numbers)), sound


def acceptances(p: mx.array, q: mx.array, tokens: mx.array) -> tuple[mx.array, mx.array]:
    """float32 [rows], min(1, p / q) at each row's token; bool [rows], whether q gives it any chance."""
    own = mx.take_along_axis(p, tokens[:, None], axis=-1)[:, 0]
    draft = mx.take_along_axis(q, tokens[:, None], axis=-1)[:, 0]
    return mx.minimum(own / draft, 1), draft > 0


def residuals(p: mx.array, q: mx.array) -> mx.array:
    """What p has above q, not normalised; p itself where rounding has left nothing."""
    above = mx.maximum(p - q, 0)
    return mx.where(mx.max(above, axis=-1, keepdims=True) == 0, p, above)


def _coin(row: RowLaw) -> float:
    """In [0, 1) in float32 too: a draft that must be kept is never refused by a number that was rounded up to 1."""
    return math.floor(uniform(row.sampling.seed, row.position, Purpose.COIN) * 2**24) / 2**24

"""Speculation that leaves the law as it is, as pure functions in NumPy float64.

p is the law of a position given the tokens before it, q what its draft was drawn from; None stands for a point mass, a
draft that no number decided. Whatever q is, what comes out is distributed as p (Leviathan, Kalman, Matias 2023; Chen
et al. 2023). What is left to chance is asked of a `Chance`, so that a test can follow every branch with its weight.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pomona.workers.randomness import Purpose, uniform
from pomona.workers.sampling.reference import Vector, pick

SUM_TOLERANCE = 1e-4
"""How far from 1 the sum of probabilities may be that were computed in float32."""


class Chance(Protocol):
    def __call__(self, probabilities: Vector, position: int, purpose: Purpose) -> int:
        """An index, with those probabilities; `position` is that of the output token that it decides on."""
        ...


class Keyed(NamedTuple):
    """The chance of one request."""

    seed: int

    def __call__(self, probabilities: Vector, position: int, purpose: Purpose) -> int:
        return pick(probabilities, uniform(self.seed, position, purpose))


class Verified(NamedTuple):
    token: int
    accepted: bool
    """The draft was kept. Where rounding left no residual, a draft that was not may still come out again."""


def acceptance_probability(p: Vector, q: Vector, draft: int) -> float:
    """min(1, p / q) at the draft. Raises ValueError where q gives the draft no chance: then q is not its law."""
    _check(p, q)
    if q[draft] == 0:
        raise ValueError(f"the draft {draft} has probability 0 in the distribution that it is said to be drawn from")
    return min(1.0, float(p[draft] / q[draft]))


def residual_distribution(p: Vector, q: Vector) -> Vector:
    """What p has above q, normalised; p itself where it has nothing, which only rounding can bring about."""
    _check(p, q)
    above = np.maximum(p - q, 0.0)
    mass = above.sum()
    return np.asarray(above / mass if mass > 0 else p / p.sum(), dtype=np.float64)


def verify_one_token(p: Vector, q: Vector | None, draft: int, position: int, chance: Chance) -> Verified:
    """The token of the position, whose draft came from q.

    Beside a point mass the token is drawn as if nothing had been drafted: the draft is accepted with p(draft), as the
    rule wants it, and the token of a seed does not depend on it.
    """
    if q is None:
        token = chance(p, position, Purpose.SAMPLE)
        return Verified(token, token == draft)
    acceptance = acceptance_probability(p, q, draft)
    if chance(np.array([acceptance, 1.0 - acceptance]), position, Purpose.COIN) == 0:
        return Verified(draft, True)
    return Verified(chance(residual_distribution(p, q), position, Purpose.RESIDUAL), False)


def verify_round(
    targets: Sequence[Vector], drafts: Sequence[int], origins: Sequence[Vector | None], position: int, chance: Chance
) -> list[int]:
    """The tokens of one round, 1 to len(drafts) + 1 of them; the first is output token `position`.

    `targets` holds one law more than there are drafts: `targets[i]` is that behind the first i drafts, so it counts for
    the round only if those came out. Raises ValueError for lengths that do not fit.
    """
    if not len(targets) - 1 == len(drafts) == len(origins):
        raise ValueError(
            f"{len(drafts)} drafts from {len(origins)} distributions need {len(drafts) + 1} laws, not {len(targets)}"
        )
    tokens: list[int] = []
    for p, q, draft in zip(targets[:-1], origins, drafts, strict=True):
        tokens.append(verify_one_token(p, q, draft, position + len(tokens), chance).token)
        if tokens[-1] != draft:
            return tokens
    return [*tokens, chance(targets[-1], position + len(tokens), Purpose.SAMPLE)]


def speculative_output_marginal(p: Vector, q: Vector) -> Vector:
    """The distribution of a verified token over all drafts that q may give; it is p, whatever q is."""
    marginal = np.zeros(len(p))
    for draft in np.flatnonzero(q):
        acceptance = acceptance_probability(p, q, int(draft))
        marginal[draft] += q[draft] * acceptance
        marginal += q[draft] * (1.0 - acceptance) * residual_distribution(p, q)
    return marginal


def _check(p: Vector, q: Vector) -> None:
    if p.shape != q.shape:
        raise ValueError(f"p is over {len(p)} tokens and q over {len(q)}")
    for name, each in (("p", p), ("q", q)):
        if not ((each >= 0).all() and abs(each.sum() - 1) < SUM_TOLERANCE):  # nor is it one with a NaN or inf
            raise ValueError(f"{name} is no distribution: its entries must be 0 or more and sum to 1")

"""Every way that a program which leaves things to chance can go, with its weight: the exact law of what it gives."""

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import TypeVar

import numpy as np

from pomona.workers.randomness import Purpose
from pomona.workers.sampling.reference import Vector
from pomona.workers.speculation.exact import Chance

Outcome = TypeVar("Outcome", bound=Hashable)

MOST_BRANCHES = 400_000


class Branch:
    """A chance that follows a script, then takes the first index that is possible and notes the others.

    With `keyed`, one number in [0, 1) belongs to each position and purpose for the whole run, as in the engine: what it
    once decided narrows it down for all that it decides later.
    """

    def __init__(self, script: tuple[int, ...], *, keyed: bool) -> None:
        self.weight = 1.0
        self.others: list[tuple[int, ...]] = []
        self._script = script
        self._taken: tuple[int, ...] = ()
        self._spans: dict[tuple[int, Purpose], tuple[float, float]] = {}
        self._keyed = keyed

    def __call__(self, probabilities: Vector, position: int, purpose: Purpose) -> int:
        assert (probabilities >= 0).all()
        assert abs(probabilities.sum() - 1) < 1e-9
        borders = np.concatenate([[0.0], np.cumsum(probabilities)])
        borders[-1] = 1.0
        low, high = self._spans.get((position, purpose), (0.0, 1.0)) if self._keyed else (0.0, 1.0)
        lows, highs = np.maximum(borders[:-1], low), np.minimum(borders[1:], high)
        weights = np.where(probabilities > 0, np.maximum(highs - lows, 0.0), 0.0)
        weights /= weights.sum()
        possible = [int(index) for index in np.flatnonzero(weights)]
        depth = len(self._taken)
        if depth < len(self._script):
            index = self._script[depth]
        else:
            index = possible[0]
            self.others += [(*self._taken, other) for other in possible[1:]]
        self._taken += (index,)
        self._spans[position, purpose] = (float(lows[index]), float(highs[index]))
        self.weight *= float(weights[index])
        return index


def law_of(program: Callable[[Chance], Outcome], *, keyed: bool = False) -> dict[Outcome, float]:
    """The probability of each outcome of a program."""
    law: dict[Outcome, float] = defaultdict(float)
    pending: list[tuple[int, ...]] = [()]
    for _ in range(MOST_BRANCHES):
        if not pending:
            return law
        branch = Branch(pending.pop(), keyed=keyed)
        law[program(branch)] += branch.weight
        pending += branch.others
    raise AssertionError("the program has too many branches to follow them all")

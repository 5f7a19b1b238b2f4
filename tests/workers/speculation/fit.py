"""How well counts fit a law: Pearson's chi-square over pooled bins."""

import math
from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

Outcome = TypeVar("Outcome", bound=Hashable)

LEAST = 5.0
"""Expected counts below this are pooled into one bin."""


class Fit(NamedTuple):
    distance: float
    """Sum of squared deviations, each over its expectation."""
    freedom: int

    @property
    def p(self) -> float:
        """Probability of a distance as great under the law (Wilson and Hilferty 1931, the cube root is normal)."""
        if not self.freedom:
            return 1.0
        spread = 2 / (9 * self.freedom)
        return math.erfc(((self.distance / self.freedom) ** (1 / 3) - 1 + spread) / math.sqrt(2 * spread)) / 2


def fit(counts: Mapping[Outcome, int], law: Mapping[Outcome, float]) -> Fit:
    """What the law rules out fits it in no way: the distance is infinite then."""
    total = sum(counts.values())
    if counts.keys() - law.keys():
        return Fit(math.inf, 1)
    bins: list[tuple[int, float]] = []
    rest, expected_rest = 0, 0.0
    for outcome, share in law.items():
        if total * share >= LEAST:
            bins.append((counts.get(outcome, 0), total * share))
        else:
            rest, expected_rest = rest + counts.get(outcome, 0), expected_rest + total * share
    if expected_rest >= LEAST:
        bins.append((rest, expected_rest))
    elif expected_rest:
        bins[-1] = (bins[-1][0] + rest, bins[-1][1] + expected_rest)
    distance = sum((count - expected) ** 2 / expected for count, expected in bins)
    return Fit(distance, len(bins) - 1)

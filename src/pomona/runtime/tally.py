"""Histograms that cross process boundaries: one process counts, another shows."""

from bisect import bisect_left
from collections.abc import Sequence

from pomona.runtime.wire import Part


class Tally(Part):
    """Values by the buckets of a histogram whose bounds both sides know."""

    counts: tuple[int, ...]
    """Values by the first bound that they do not exceed; the last place is for those beyond every bound."""
    total: float = 0.0
    """All values together."""


def empty(bounds: Sequence[float]) -> Tally:
    return Tally((0,) * (len(bounds) + 1))


class Histogram:
    """Counts values by `bounds`, which rise."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def note(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def tally(self) -> Tally:
        """What was counted so far."""
        return Tally(tuple(self._counts), self._total)

"""How likely a draft is accepted once those before it were: by method, by how good it looked, and by row."""

from collections import Counter
from functools import cache
from math import sqrt
from typing import NamedTuple

from pomona.config import Method
from pomona.workers.messages import RequestId

BOUNDS = (2, 3, 4, 5, 7, 10, 14, 20, 28)
"""Match lengths at which another class of drafts begins."""
PRIOR_BY_LENGTH = (0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
PRIOR_BY_DEPTH = 0.6
"""Hopeful, so that what might pay is tried; a few tests outweigh it."""
PRIOR_WEIGHT = 4.0
KEPT_TESTS = 200
"""Tests that a class of a method remembers."""
HALF_LIFE = 1000
"""Steps without a test in which a class forgets half of what it knows."""
ROW_WEIGHT = 2.0
"""Refusals, expected and met, that a row is thought to have had before its first test."""
ROW_KEPT_TESTS = 48
ROW_HALF_LIFE = 256
HOPE = 2.0
"""Standard deviations, of a chance of a half at that, by which a row may have been unlucky, and more."""
RAREST, SUREST = 0.01, 0.98
PRIOR_BY_TIMES = (1.0, 0.4, 0.7, 0.85)
"""Of what a grammar forces, and of what came behind the same so many times in a row."""


REFRESH = 16
"""Steps for which a method's averages are taken to be what they were, if nothing was tested."""


_BY_LENGTH = [max(0, sum(length >= bound for bound in BOUNDS) - 1) for length in range(BOUNDS[-1] + 1)]


Strength = int | tuple[int, ...]
"""Tokens of the match that drafts continue, 0 without one; or, of each of a grammar's drafts, `Draft.times`."""


@cache
def classes_of(strength: Strength, depth: int) -> tuple[int, ...]:
    """The classes of drafts 1 to `depth`: by the length of their match, or without one (strength 0) by depth.

    A draft copied so deep behind a match continues, once those before it are accepted, a match longer by as many.
    Of a grammar's drafts each has its own.
    """
    if isinstance(strength, tuple):
        return strength[:depth]
    strength = min(strength, BOUNDS[-1])
    if strength <= 0:
        return tuple(range(-1, -1 - depth, -1))
    return tuple(_BY_LENGTH[min(length, BOUNDS[-1])] for length in range(strength, strength + depth))


class Outcome(NamedTuple):
    """What became of one row's drafts in one round; those behind the first refused one, or the row's end, are none."""

    method: Method
    strength: Strength
    drafted: int
    accepted: int


class _Counts:
    """Tests and refusals that fade: with each newer test, and while there is none."""

    __slots__ = ("at", "expected", "refused", "tested")

    def __init__(self, at: int) -> None:
        self.tested = self.expected = self.refused = 0.0
        self.at = at

    def fade(self, at: int, half_life: int) -> None:
        if at != self.at:
            self._scale(0.5 ** ((at - self.at) / half_life))
            self.at = at

    def note(self, tests: int, refused: int, expected: float, kept: int) -> None:
        self._scale((1 - 1 / kept) ** tests)
        self.tested += tests
        self.refused += refused
        self.expected += expected

    def _scale(self, factor: float) -> None:
        self.tested *= factor
        self.expected *= factor
        self.refused *= factor


class Acceptance:
    """Conditional acceptance: a method's average in the draft's class, shifted by how its row fared so far.

    A row is refused some factor more or less often than the average says, whatever the class: refusals met over
    refusals expected, drawn towards 1 while they are few. `at` is the caller's count of steps.
    """

    def __init__(self) -> None:
        self._classes: dict[tuple[Method, int], _Counts] = {}
        self._rows: dict[tuple[RequestId, Method], _Counts] = {}
        self._averages: dict[tuple[Method, int], float] = {}
        """Refusals by class, as they were lately."""
        self._averaged = 0

    def chances(self, key: RequestId, method: Method, strength: Strength, depth: int, at: int) -> list[float]:
        """For each of the drafts 1 to `depth`: how likely it is accepted, the ones before it being so."""
        row = self._row(key, method, at)
        factor = 1.0 if row is None else (row.refused + ROW_WEIGHT) / (row.expected + ROW_WEIGHT)
        if at - self._averaged >= REFRESH:
            self._averages.clear()
            self._averaged = at
        classes = classes_of(strength, depth)
        own = {each: 1 - factor * self._average(method, each, at) for each in set(classes)}
        return [own[each] if _is_forced(method, each) else max(RAREST, min(SUREST, own[each])) for each in classes]

    def hope(self, key: RequestId, method: Method, at: int) -> float:
        """Share of a row's refusals that may be bad luck: 1 for one that was not tested lately, less with each."""
        row = self._row(key, method, at)
        return 1.0 if row is None else min(1.0, HOPE / sqrt(1 + row.tested))

    def note(self, key: RequestId, outcome: Outcome, at: int) -> None:
        method, strength, drafted, accepted = outcome
        row = self._row(key, method, at)
        if row is None:
            row = self._rows[key, method] = _Counts(at)
        tested = classes_of(strength, min(accepted + 1, drafted))
        refused_at = tested[-1] if accepted < drafted else None
        for own, tests in Counter(tested).items():
            refused = int(own == refused_at)
            row.note(tests, refused, tests * self._average(method, own, at), ROW_KEPT_TESTS)
            counts = self._classes.setdefault((method, own), _Counts(at))
            counts.fade(at, HALF_LIFE)
            counts.note(tests, refused, 0.0, KEPT_TESTS)
            self._averages.pop((method, own), None)

    def forget(self, key: RequestId) -> None:
        self._rows = {own: row for own, row in self._rows.items() if own[0] != key}

    def _average(self, method: Method, own: int, at: int) -> float:
        known = self._averages.get((method, own))
        if known is None:
            known = self._averages[method, own] = self._refusal(method, own, at)
        return known

    def _refusal(self, method: Method, own: int, at: int) -> float:
        """The method's average in one class."""
        by_class = PRIOR_BY_TIMES if method == "grammar" else PRIOR_BY_LENGTH
        prior = 1 - (PRIOR_BY_DEPTH if own < 0 else by_class[own])
        counts = self._classes.get((method, own))
        if counts is None:
            return prior
        counts.fade(at, HALF_LIFE)
        return (counts.refused + PRIOR_WEIGHT * prior) / (counts.tested + PRIOR_WEIGHT)

    def _row(self, key: RequestId, method: Method, at: int) -> _Counts | None:
        row = self._rows.get((key, method))
        if row is not None:
            row.fade(at, ROW_HALF_LIFE)
        return row


def _is_forced(method: Method, own: int) -> bool:
    """Nothing else may be drawn, so it is certain, unless some were seen to be refused."""
    return method == "grammar" and own == 0

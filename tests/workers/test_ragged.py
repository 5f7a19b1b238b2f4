"""Rows that feed drafts of their own number and keep any part of them compute what they compute alone."""

import random
from collections.abc import Sequence

import pytest

from pomona.workers.row import Row
from tests.workers.families import SETTINGS
from tests.workers.rows_bench import Bench

LENGTHS = (1, 1, 2, 5, 9, 12, 23, 39, 41, 70)
MOST_ROWS = 5
APART = 30
"""Tokens from which on rows of plain KV stand apart here."""


class Rounds:
    """What an engine does, by chance: rows join and leave at any time, also between a forward and its settling."""

    def __init__(self, family: str, seed: int) -> None:
        self.source = random.Random(seed)
        self.bench = Bench(family, APART)
        self.verified = 0

    @property
    def rows(self) -> list[Row]:
        return self.bench.batch.rows

    def run(self, patterns: int) -> None:
        """Until so many rows have kept a part of what they fed."""
        while self.verified < patterns:
            if not self.rows or self.source.random() < 0.15:
                self._join()
            elif self.source.random() < 0.1:
                self._leave()
            elif self.source.random() < 0.2:
                self.bench.step()
            else:
                self._round()

    def _join(self) -> None:
        if len(self.rows) < (self.bench.batch.width_limit or MOST_ROWS):
            self.bench.join(f"r{self.source.getrandbits(64)}", self.source.choice(LENGTHS))

    def _leave(self) -> None:
        gone = self.source.sample(self.rows, self.source.randint(1, max(1, len(self.rows) // 2)))
        for row in gone:
            self.bench.goes_on_alone(row)
        self.bench.batch.leave(gone)

    def _round(self) -> None:
        drafts = [self._drafts() for _ in self.rows]
        fed = {row.request.id: own for row, own in zip(self.rows, drafts, strict=True)}
        self.bench.verify(drafts)
        if self.source.random() < 0.15:
            self._leave()
        if self.source.random() < 0.15:
            self._join()
        counts = {name: self.source.randint(1, 1 + len(own)) for name, own in fed.items()}
        self.bench.settle(fed, counts, self.source)
        self.verified += len(fed)

    def _drafts(self) -> Sequence[int]:
        return [self.source.randrange(320) for _ in range(self.source.choice((0, 0, 1, 2, 2, 3, 6)))]


FAMILIES = (*SETTINGS, "attention first", "sinks", "shared", "sparse")


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_rows_keep_they_compute_what_they_compute_alone(family: str) -> None:
    Rounds(family, 1).run(40)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_thousand_patterns_change_nothing(family: str, seed: int) -> None:
    Rounds(family, 100 + seed).run(250)

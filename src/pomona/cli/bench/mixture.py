"""Sizes drawn by weight: `40`, or `40:0.7,400:0.25,1500:0.05`. Pure."""

import math
import random
from dataclasses import dataclass

from pomona.cli.bench.problem import BenchError


@dataclass(frozen=True, slots=True)
class Share:
    size: int
    weight: float


@dataclass(frozen=True, slots=True)
class Mixture:
    """At least one share; the weights are positive and need not add up to 1."""

    shares: tuple[Share, ...]

    @classmethod
    def of(cls, size: int) -> "Mixture":
        """Always `size`."""
        return cls((Share(size, 1.0),))

    @classmethod
    def parse(cls, text: str, *, option: str, least: int = 1) -> "Mixture":
        """Raises BenchError, naming `option`, for anything but sizes of at least `least` with positive weights."""
        return cls(tuple(_share(part.strip(), option, least) for part in text.split(",")))

    @property
    def mean(self) -> float:
        total = sum(share.weight for share in self.shares)
        return sum(share.size * share.weight for share in self.shares) / total

    def draw(self, source: random.Random) -> int:
        weights = [share.weight for share in self.shares]
        return source.choices([share.size for share in self.shares], weights)[0]

    def __str__(self) -> str:
        if len(self.shares) == 1:
            return str(self.shares[0].size)
        return ",".join(f"{share.size}:{share.weight:g}" for share in self.shares)


def _share(part: str, option: str, least: int) -> Share:
    size, colon, weight = part.partition(":")
    try:
        share = Share(int(size), float(weight) if colon else 1.0)
    except ValueError as error:
        raise BenchError(f"{option}: {part!r} is not a size; write 40, or a mixture like 40:0.7,400:0.3") from error
    if share.size < least:
        raise BenchError(f"{option}: {share.size} is below {least}")
    if not (share.weight > 0 and math.isfinite(share.weight)):
        raise BenchError(f"{option}: the weight of {share.size} must be above 0, not {weight}")
    return share

"""Scales and ticks of a plot. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

STEPS = (1.0, 2.0, 5.0, 10.0)
LEAST = 1e-9
"""Values that are all smaller are drawn as nothing, on an axis to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Values from 0 to `top` drawn from `start` to `end` (pixels, which may descend)."""

    top: float
    ticks: tuple[float, ...]
    start: float
    end: float

    def place(self, value: float) -> float:
        return self.start + (self.end - self.start) * value / self.top


def axis(values: Iterable[float], *, start: float, end: float, most: int = 6) -> Axis:
    """From 0 past the greatest value to the next round number, with at most about `most` round ticks."""
    greatest = max((value for value in values if math.isfinite(value)), default=0.0)
    if greatest < LEAST:
        greatest = 1.0
    rough = greatest / most
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(scale * factor for factor in STEPS if scale * factor >= rough * (1 - 1e-9))
    number = math.ceil(greatest / step - 1e-9)
    return Axis(top=number * step, ticks=tuple(tick * step for tick in range(number + 1)), start=start, end=end)

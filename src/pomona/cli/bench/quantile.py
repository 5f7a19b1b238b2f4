"""Percentiles of measured values. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Milliseconds, interpolated between the two nearest values."""

    p50: float
    p90: float
    p99: float
    max: float
    p95: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the ascending values lie, interpolated; raises ValueError if none."""
    if not ordered:
        raise ValueError("no values")
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = math.ceil(place)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles_ms(seconds: Iterable[float]) -> Percentiles | None:
    """None of no values."""
    ordered = sorted(value * 1e3 for value in seconds)
    if not ordered:
        return None
    p50, p90, p95, p99 = (round(percentile(ordered, share), 3) for share in (0.5, 0.9, 0.95, 0.99))
    return Percentiles(p50=p50, p90=p90, p95=p95, p99=p99, max=round(ordered[-1], 3))

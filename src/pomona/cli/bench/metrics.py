"""Arithmetic over outcomes: percentiles, tokens per second, ratios. Pure."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pomona.cli.bench.answer import Answer, Failure, Outcome

FIRST_FAILURES = 3
"""Reasons that a result carries; the count is always whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Milliseconds, interpolated between the two nearest values."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One measured load. Absent percentiles mean that no request gave a value."""

    concurrency: int
    requests: int
    """Requests that ended well; only these enter the figures below."""
    errors: int
    first_errors: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int
    wall_s: float
    """Seconds from the first request sent to the last one ended, failures included."""
    tokens_per_s: float
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    """Time per token after the first text."""
    whole_ms: Percentiles | None
    """Time per token of the whole answer, prefill included."""
    gap_ms: Percentiles | None
    finish: dict[str, int]
    """Requests by finish reason."""
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One ratio for each round, and how they spread."""

    median: float
    min: float
    max: float
    rounds: tuple[float, ...]


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the ascending values lie, interpolated; raises ValueError if none."""
    if not ordered:
        raise ValueError("no values")
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = math.ceil(place)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles_ms(seconds: Iterable[float]) -> Percentiles | None:
    ordered = sorted(value * 1e3 for value in seconds)
    if not ordered:
        return None
    p50, p90, p99 = (round(percentile(ordered, share), 3) for share in (0.5, 0.9, 0.99))
    return Percentiles(p50=p50, p90=p90, p99=p99, max=round(ordered[-1], 3))


def summarise(outcomes: Sequence[Outcome], concurrency: int, *, interrupted: bool = False) -> LoadResult:
    """The figures of one load; an empty one gives zeros."""
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    wall = max((o.finished for o in outcomes), default=0.0) - min((o.started for o in outcomes), default=0.0)
    tokens = sum(answer.completion_tokens for answer in answers)
    finish: dict[str, int] = {}
    for answer in answers:
        finish[answer.finish] = finish.get(answer.finish, 0) + 1
    return LoadResult(
        concurrency=concurrency,
        requests=len(answers),
        errors=len(failures),
        first_errors=tuple(failure.reason for failure in failures[:FIRST_FAILURES]),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        completion_tokens=tokens,
        wall_s=round(wall, 3),
        tokens_per_s=round(tokens / wall, 3) if wall > 0 else 0.0,
        ttft_ms=percentiles_ms(answer.ttft for answer in answers),
        tpot_ms=percentiles_ms(answer.tpot for answer in answers if answer.tpot is not None),
        whole_ms=percentiles_ms(answer.whole for answer in answers if answer.whole is not None),
        gap_ms=percentiles_ms(gap for answer in answers for gap in answer.gaps),
        finish=finish,
        interrupted=interrupted,
    )


def ratio_of(pairs: Iterable[tuple[float, float]]) -> Ratio | None:
    """The ratio first / second of every pair; a pair with a zero is left out, None if none is left."""
    rounds = tuple(round(first / second, 4) for first, second in pairs if first > 0 and second > 0)
    if not rounds:
        return None
    return Ratio(median=round(statistics.median(rounds), 4), min=min(rounds), max=max(rounds), rounds=rounds)

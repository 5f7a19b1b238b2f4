"""Arithmetic over outcomes: tokens per second, latencies, ratios. Pure."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pomona.cli.bench.answer import Answer, Failure, Left, Outcome
from pomona.cli.bench.quantile import Percentiles, percentiles_ms
from pomona.cli.bench.slo import Goodput, Slo, goodput

FIRST_FAILURES = 3
"""Reasons that a result carries; the count is always whole."""


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
    left: int = 0
    """Requests that their client broke off as it was meant to; they enter no other figure but `wall_s`."""
    rate: float | None = None
    """Requests a second that the open loop was set to offer; None in a closed loop."""
    offered_per_s: float | None = None
    """Requests a second as they were drawn, up to the last arrival; None in a closed loop or a part of one."""
    ended_per_s: float = 0.0
    """Answers and broken off requests a second of `wall_s`."""
    load_percent: float | None = None
    """`rate` in percent of the capacity that the closed loop found."""
    latency_ms: Percentiles | None = None
    """From the start of a request to its finish reason."""
    lag_ms: Percentiles | None = None
    """How late the client itself sent the requests of an open loop; it is part of TTFT and latency."""
    goodput: Goodput | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One ratio for each round, and how they spread."""

    median: float
    min: float
    max: float
    rounds: tuple[float, ...]


def summarise(
    outcomes: Sequence[Outcome],
    concurrency: int,
    *,
    interrupted: bool = False,
    rate: float | None = None,
    load_percent: float | None = None,
    slo: Slo | None = None,
) -> LoadResult:
    """The figures of one load, of an open one where there is a `rate`; an empty one gives zeros."""
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    left = [outcome for outcome in outcomes if isinstance(outcome, Left)]
    first = min((outcome.started for outcome in outcomes), default=0.0)
    wall = max((outcome.finished for outcome in outcomes), default=0.0) - first
    whole_open = rate is not None and not interrupted
    arriving = max((outcome.started for outcome in outcomes), default=0.0) - first
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
        left=len(left),
        rate=rate,
        offered_per_s=round((len(outcomes) - 1) / arriving, 3) if whole_open and arriving > 0 else None,
        ended_per_s=round((len(answers) + len(left)) / wall, 3) if wall > 0 else 0.0,
        load_percent=load_percent,
        latency_ms=percentiles_ms(answer.finished - answer.started for answer in answers),
        lag_ms=percentiles_ms(answer.lag for answer in answers) if rate is not None else None,
        goodput=goodput(outcomes, slo, wall) if slo is not None else None,
    )


def ratio_of(pairs: Iterable[tuple[float, float]]) -> Ratio | None:
    """The ratio first / second of every pair; a pair with a zero is left out, None if none is left."""
    rounds = tuple(round(first / second, 4) for first, second in pairs if first > 0 and second > 0)
    if not rounds:
        return None
    return Ratio(median=round(statistics.median(rounds), 4), min=min(rounds), max=max(rounds), rounds=rounds)


def median_of(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 4) if known else None

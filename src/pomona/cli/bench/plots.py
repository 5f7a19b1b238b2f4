"""Which plots a sweep has. Pure."""

from collections.abc import Callable, Sequence
from typing import assert_never

from pomona.cli.bench.answer import Answer, Failure, Left, Outcome
from pomona.cli.bench.measure import Recorded
from pomona.cli.bench.metrics import LoadResult
from pomona.cli.bench.quantile import Percentiles, percentile
from pomona.cli.bench.report import label_of
from pomona.cli.bench.svg import Bar, Plot, Series

CURVE_POINTS = 200
TIMELINE_REQUESTS = 200

Figure = Callable[[LoadResult], float | None]
Spread = Callable[[LoadResult], Percentiles | None]


def sweep_plots(results: Sequence[LoadResult]) -> list[Plot]:
    """Throughput and latency over the streams of the closed loops, and over the offered rate of the open ones."""
    closed = [result for result in results if result.rate is None]
    opened = sorted((result for result in results if result.rate is not None), key=lambda result: result.rate or 0.0)
    plots: list[Plot] = []
    if closed:
        x = "streams"
        plots.append(Plot(title="Throughput", x=x, y="tokens/s", series=(_series("tokens/s", closed, tokens),)))
        plots += _latencies("", x, closed)
    if opened:
        x = "requests/s offered"
        rates = (
            _series("offered", opened, _x),
            _series("ended", opened, ended),
            _series("met the SLO", opened, good),
        )
        plots.append(Plot(title="Open loop: offered and achieved", x=x, y="requests/s", series=rates))
        plots += _latencies("Open loop: ", x, opened)
    return plots


def distribution_plots(recorded: Sequence[Recorded]) -> list[Plot]:
    """The share of TTFTs, and of gaps, that are below each value; one curve for each load."""
    kinds: tuple[tuple[str, Callable[[Answer], Sequence[float]]], ...] = (
        ("TTFT", lambda answer: (answer.ttft,)),
        ("gap", lambda answer: answer.gaps),
    )
    plots = []
    for name, values in kinds:
        curves = tuple(
            Series(
                name=f"{label_of(one.result)} {'streams' if one.result.rate is None else ''}".strip(),
                points=curve([v for outcome in one.outcomes if isinstance(outcome, Answer) for v in values(outcome)]),
            )
            for one in recorded
        )
        plots.append(Plot(title=f"Distribution of {name}", x=f"{name}, ms", y="share", series=curves, dots=False))
    return plots


def curve(seconds: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """(ms, share of the values that are not greater), at most CURVE_POINTS of them; none for no value."""
    ordered = sorted(seconds)
    if not ordered:
        return ()
    number = min(CURVE_POINTS, len(ordered))
    shares = [1.0] if number == 1 else [point / (number - 1) for point in range(number)]
    return tuple((percentile(ordered, share) * 1e3, share) for share in shares)


def bars(outcomes: Sequence[Outcome]) -> list[Bar]:
    """The first TIMELINE_REQUESTS of a load by their start, which is moment 0."""
    ordered = sorted(outcomes, key=lambda outcome: outcome.started)[:TIMELINE_REQUESTS]
    return [_bar(outcome, ordered[0].started) for outcome in ordered]


def _bar(outcome: Outcome, epoch: float) -> Bar:
    started, finished = outcome.started - epoch, outcome.finished - epoch
    match outcome:
        case Answer():
            first: float | None = outcome.deltas[0] - epoch
            kind, told = "answer", f"{outcome.completion_tokens} tokens, TTFT {outcome.ttft * 1e3:.0f} ms"
        case Left():
            first = outcome.deltas[0] - epoch if outcome.deltas else None
            kind, told = "left", f"broken off after {len(outcome.deltas)} deltas"
        case Failure():
            first, kind, told = None, "failure", outcome.reason
        case _:
            assert_never(outcome)
    text = f"{started:.2f} s to {finished:.2f} s: {told}"
    return Bar(started=started, first=first, finished=finished, kind=kind, text=text)


def tokens(result: LoadResult) -> float | None:
    return result.tokens_per_s


def ended(result: LoadResult) -> float | None:
    return result.ended_per_s


def good(result: LoadResult) -> float | None:
    return None if result.goodput is None else result.goodput.per_s


def _x(result: LoadResult) -> float:
    return float(result.concurrency) if result.rate is None else result.offered_per_s or result.rate


def _series(name: str, results: Sequence[LoadResult], figure: Figure) -> Series:
    found = sorted((_x(result), value) for result in results if (value := figure(result)) is not None)
    return Series(name=name, points=tuple(found))


def _latencies(prefix: str, x: str, results: Sequence[LoadResult]) -> list[Plot]:
    spreads: tuple[tuple[str, Spread], ...] = (
        ("TTFT", lambda result: result.ttft_ms),
        ("Gap between deltas", lambda result: result.gap_ms),
    )
    return [
        Plot(title=f"{prefix}{name}", x=x, y="ms", series=tuple(_percentiles(results, spread)))
        for name, spread in spreads
    ]


def _percentiles(results: Sequence[LoadResult], spread: Spread) -> list[Series]:
    wanted: tuple[tuple[str, Callable[[Percentiles], float]], ...] = (
        ("p50", lambda values: values.p50),
        ("p90", lambda values: values.p90),
        ("p95", lambda values: values.p95),
        ("p99", lambda values: values.p99),
    )

    found = [(result, values) for result in results if (values := spread(result)) is not None]
    return [
        Series(name=name, points=tuple(sorted((_x(result), pick(values)) for result, values in found)))
        for name, pick in wanted
    ]

"""`bench serve`: one load after another against a server that runs already."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from pomona.cli.bench.load import Load, Target
from pomona.cli.bench.measure import Interrupted, Recorded, outcomes_of
from pomona.cli.bench.metrics import LoadResult, summarise
from pomona.cli.bench.mixture import Mixture
from pomona.cli.bench.plan import WARM_UP_TOKENS
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.progress import BenchProgress
from pomona.cli.bench.slo import Slo

OPEN_S = 30.0
LEAST_OPEN_REQUESTS = 20
WARM_UP_STREAMS = 8
"""Of an open loop that no closed one went before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is to be measured: closed loops by their streams, then open loops by their rate, then by their share."""

    load: Load
    """What all of them have in common; its concurrency, requests and rate are not regarded."""
    streams: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    """Requests a second."""
    percents: tuple[float, ...] = ()
    """Of the requests a second that the widest closed loop ended; `streams` must not be empty then."""
    requests: int | None = None
    """Of each load; None: two a stream, four where the load finds the capacity, or half a minute of arrivals."""
    slo: Slo = dataclasses.field(default_factory=Slo)

    def closed(self, streams: int) -> Load:
        each = 4 if self.percents and streams == max(self.streams) else 2
        return dataclasses.replace(
            self.load,
            concurrency=streams,
            requests=self.requests or max(4, each * streams),
            rate=None,
            seed=f"{self.load.seed} load {streams}",
        )

    def open(self, rate: float) -> Load:
        return dataclasses.replace(
            self.load,
            concurrency=max(self.streams, default=WARM_UP_STREAMS),
            requests=self.requests or max(LEAST_OPEN_REQUESTS, round(rate * OPEN_S)),
            rate=rate,
            seed=f"{self.load.seed} rate {rate:.6g}",
        )


def warm_up(load: Load) -> Load:
    """A closed loop of short answers at the width of `load`, with prompts of its own; nobody leaves early."""
    return dataclasses.replace(
        load,
        requests=min(load.concurrency, load.requests),
        max_tokens=Mixture.of(WARM_UP_TOKENS),
        rate=None,
        cancel=0.0,
        seed=f"{load.seed} warm-up",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    loads: tuple[LoadResult, ...]
    interrupted: bool
    """The last load may then be a part, and says so itself; the ones after it are missing."""
    sweep: Sweep | None = None
    """What was asked for."""

    @property
    def errors(self) -> int:
        return sum(load.errors for load in self.loads)


class Running:
    """Measures a sweep; `recorded` grows as it goes, so an interrupt loses nothing."""

    def __init__(self, target: Target, sweep: Sweep, progress: BenchProgress) -> None:
        self._target = target
        self._sweep = sweep
        self._progress = progress
        self.recorded: list[Recorded] = []
        self._interrupted = False

    def run(self) -> None:
        """Raises BenchError if a share of the capacity is asked for and the widest closed loop ended no request."""
        try:
            for streams in self._sweep.streams:
                self._measure(self._sweep.closed(streams), f"streams {streams}")
            for rate in self._sweep.rates:
                self._measure(self._sweep.open(rate), f"{rate:g} requests/s")
            capacity = self._capacity() if self._sweep.percents else 0.0
            for percent in self._sweep.percents:
                self._measure(self._sweep.open(capacity * percent / 100), f"load {percent:g} %", percent)
        except (Interrupted, KeyboardInterrupt):
            self._interrupted = True

    @property
    def measurements(self) -> Measurements:
        loads = tuple(one.result for one in self.recorded)
        return Measurements(loads=loads, interrupted=self._interrupted, sweep=self._sweep)

    def _capacity(self) -> float:
        closed: Sequence[LoadResult] = [one.result for one in self.recorded if one.result.rate is None]
        widest = max(closed, key=lambda result: result.concurrency)
        if not widest.ended_per_s:
            reason = widest.first_errors[0] if widest.first_errors else "none was sent"
            raise BenchError(f"--load: no request of the {widest.concurrency} streams ended well ({reason})")
        return widest.ended_per_s

    def _measure(self, load: Load, label: str, percent: float | None = None) -> None:
        outcomes_of(self._target, warm_up(load), f"{label}, warm-up", self._progress)
        interrupted = None
        try:
            outcomes = tuple(outcomes_of(self._target, load, label, self._progress))
        except Interrupted as stop:
            interrupted, outcomes = stop, stop.outcomes
        if outcomes:
            result = summarise(
                outcomes,
                load.concurrency,
                interrupted=interrupted is not None,
                rate=load.rate,
                load_percent=percent,
                slo=self._sweep.slo,
            )
            self.recorded.append(Recorded(result=result, outcomes=outcomes))
        if interrupted is not None:
            raise interrupted

"""Runs `bench limit`: the bare loop and Pomona side by side, in turn at each width, round after round."""

import contextlib
from dataclasses import dataclass
from typing import assert_never

from pomona.cli.bench.answer import Failure
from pomona.cli.bench.counters import scrape
from pomona.cli.bench.floor import FloorRun, FloorTask
from pomona.cli.bench.floor_process import FloorProcess, floor_process
from pomona.cli.bench.ground import Ground, Pomona
from pomona.cli.bench.limits import LimitPlan, Side, WidthRun, of_floor, of_outcomes
from pomona.cli.bench.load import Load
from pomona.cli.bench.measure import Interrupted, outcomes_of
from pomona.cli.bench.plan import WARM_UP_TOKENS
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.progress import BenchProgress

START_S = 120.0
TOKEN_S = 5.0
"""Seconds that the bare loop may take for one token of all rows, beside its start, before it counts as stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitBench:
    """Both sides are alive all the time and idle while the other runs, so neighbouring runs are paired closely."""

    plan: LimitPlan
    ground: Ground

    def run(self, measured: list[WidthRun]) -> bool:
        """Appends every finished batch to `measured`; False if the user stopped it before the end.

        Raises BenchError if a side cannot be started or fails its warm-up.
        """
        try:
            with contextlib.ExitStack() as stack:
                floor = stack.enter_context(floor_process(self.ground.folder, self.plan.loader, self.ground.env))
                server = self._server(stack) if self.plan.server else None
                sides = Sides(floor, server, self.ground.progress)
                for width in self.plan.widths:
                    sides.warm_up(self.plan.load("warm-up", width, WARM_UP_TOKENS))
                for turn in range(self.plan.rounds):
                    self.ground.progress.step(f"round {turn + 1} of {self.plan.rounds}")
                    for width, side in self.plan.turns(turn):
                        load = self.plan.load(f"round {turn}", width, self.plan.max_tokens)
                        measured.append(sides.measure(turn, load, side))
        except (Interrupted, KeyboardInterrupt):
            return False
        return True

    def _server(self, stack: contextlib.ExitStack) -> Pomona:
        """It does what the bare loop does, and nothing on top: without guesses."""
        config = f"[worker]\nmax_running = {max(self.plan.widths)}\n" + self.ground.speculation('method = "off"')
        return stack.enter_context(self.ground.pomona(self.ground.scratch / "home", config))


@dataclass(frozen=True, slots=True)
class Sides:
    """The two that are compared, started; `server` is None where only the bare loop runs."""

    floor: FloorProcess
    server: Pomona | None
    progress: BenchProgress

    def warm_up(self, load: Load) -> None:
        """Raises BenchError if either side fails."""
        self._bare(load)
        if self.server is None:
            return
        label = f"warm-up, {load.concurrency} rows"
        for outcome in outcomes_of(self.server.target, load, label, self.progress):
            if isinstance(outcome, Failure):
                words = self.server.process.last_words
                raise BenchError(f"Pomona failed in warm-up: {outcome.reason} (log: {words})")

    def measure(self, turn: int, load: Load, side: Side) -> WidthRun:
        """One batch on one side."""
        match side:
            case Side.BARE:
                self.progress.step(f"  bare loop, {load.concurrency} rows")
                return of_floor(turn, load.concurrency, self._bare(load))
            case Side.POMONA:
                return self._pomona(turn, load)
        assert_never(side)

    def _bare(self, load: Load) -> FloorRun:
        asks = list(load.asks)
        task = FloorTask(prompts=tuple(one.prompt for one in asks), max_tokens=asks[0].max_tokens)
        return self.floor.run(task, START_S + TOKEN_S * task.max_tokens)

    def _pomona(self, turn: int, load: Load) -> WidthRun:
        if self.server is None:
            raise BenchError("there is no server to measure")
        before = scrape(self.server.url)
        outcomes = outcomes_of(self.server.target, load, f"  Pomona, {load.concurrency} rows", self.progress)
        return of_outcomes(turn, load.concurrency, outcomes, scrape(self.server.url).step_s(before))

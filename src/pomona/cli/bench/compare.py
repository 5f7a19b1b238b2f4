"""Runs a comparison: one contender alive at a time, the same loads for each, round after round."""

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import msgspec

from pomona.cli.bench.answer import Answer, Failure, shorten
from pomona.cli.bench.comparison import Measured
from pomona.cli.bench.contenders import bare_command, mlx_lm_server, mlx_lm_target
from pomona.cli.bench.ground import Ground
from pomona.cli.bench.load import Target
from pomona.cli.bench.measure import Interrupted, measure, outcomes_of
from pomona.cli.bench.metrics import LoadResult, summarise
from pomona.cli.bench.plan import Contender, Plan, turns
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.server import RunningServer, claim_port, end, serving

BARE_START_S = 120.0
BARE_TOKEN_S = 5.0
"""Seconds that the bare run may take for one token before it counts as stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all turns of a comparison share."""

    plan: Plan
    ground: Ground

    def run(self, measured: list[Measured]) -> bool:
        """Appends every finished load to `measured`; False if the user stopped it before the end.

        Raises BenchError if a contender cannot be started or fails its warm-up.
        """
        try:
            for turn, contender in turns(self.plan):
                self.ground.progress.step(f"round {turn + 1} of {self.plan.rounds}: {contender}")
                self.run_turn(turn, contender, measured)
        except (Interrupted, KeyboardInterrupt):
            return False
        return True

    def run_turn(self, turn: int, contender: Contender, measured: list[Measured]) -> None:
        """One contender's part of a round, from its start to its end."""
        match contender:
            case Contender.POMONA:
                self._pomona(turn, measured)
            case Contender.MLX_LM:
                self._mlx_lm(turn, measured)
            case Contender.BARE:
                self._bare(turn, measured)
            case _:
                assert_never(contender)

    def _pomona(self, turn: int, measured: list[Measured]) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="home-", dir=self.ground.scratch) as home,
            self.ground.pomona(Path(home)) as server,
        ):
            self._warm_up(server.process, server.target, turn)
            if self.plan.single:
                load = measure(server.target, self.plan.single_load(turn), "  single stream", self.ground.progress)
                measured.append(Measured(round=turn, contender=Contender.POMONA, single=True, load=load))
            self._streams(server.target, turn, Contender.POMONA, measured)

    def _mlx_lm(self, turn: int, measured: list[Measured]) -> None:
        port = claim_port(self.ground.port)
        with serving(mlx_lm_server(self.ground.folder, port, self.ground.env, self.ground.ready_timeout_s)) as server:
            target = mlx_lm_target(port)
            self._warm_up(server, target, turn)
            self._streams(target, turn, Contender.MLX_LM, measured)

    def _bare(self, turn: int, measured: list[Measured]) -> None:
        load = self.plan.single_load(turn)
        limit = BARE_START_S + BARE_TOKEN_S * load.max_tokens.mean * (load.requests + 1)
        result = run_bare(bare_command(self.ground.folder, load), self.ground.env, limit)
        measured.append(Measured(round=turn, contender=Contender.BARE, single=True, load=result))

    def _warm_up(self, server: RunningServer, target: Target, turn: int) -> None:
        for load in self.plan.warm_ups(turn):
            for outcome in outcomes_of(target, load, f"  warm-up, streams {load.concurrency}", self.ground.progress):
                if isinstance(outcome, Failure):
                    raise BenchError(f"{server.name} failed in warm-up: {outcome.reason} (log: {server.last_words})")

    def _streams(self, target: Target, turn: int, contender: Contender, measured: list[Measured]) -> None:
        for concurrency in self.plan.streams:
            load = measure(target, self.plan.load(turn, concurrency), f"  streams {concurrency}", self.ground.progress)
            measured.append(Measured(round=turn, contender=contender, single=False, load=load))


def run_bare(argv: tuple[str, ...], env: Mapping[str, str], limit_s: float) -> LoadResult:
    """Runs the one-process stream; raises BenchError with its last line if it fails or outruns `limit_s` seconds."""
    with subprocess.Popen(
        argv,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"stream_generate gave no result within {limit_s:g} s") from error
        finally:
            end(process)
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise BenchError(f"stream_generate exited with {process.returncode}: {shorten(lines[-1])}")
    return summarise(msgspec.json.decode(output, type=list[Answer]), concurrency=1)

"""Runs `bench speculation`: the same batches in each way, side by side, over servers that run all the time."""

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import msgspec

from pomona.cli.bench.answer import AnswerReader, Failure, Outcome
from pomona.cli.bench.contenders import mlx_lm_server, mlx_lm_target
from pomona.cli.bench.conversation import ASK_S
from pomona.cli.bench.counters import scrape_decode
from pomona.cli.bench.ground import Ground, Pomona
from pomona.cli.bench.load import Target, fetch
from pomona.cli.bench.models import PROBE_S
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.server import claim_port, serving
from pomona.cli.bench.speculations import DraftRun, SpeculationPlan, Way, run_of
from pomona.cli.bench.tasks import Body, Task, bodies

FEW = 16
"""Tokens of an answer that is not measured."""
DEFAULT_ROWS = 16


class _Model(msgspec.Struct):
    speculation_methods: tuple[str, ...] | None = None


class _Models(msgspec.Struct):
    data: tuple[_Model, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationBench:
    """`runs` grows as it goes, so an interrupt loses nothing."""

    plan: SpeculationPlan
    ground: Ground
    draft_model: Path | None = None
    layers: int | None = None
    runs: list[DraftRun] = field(default_factory=list)

    def run(self) -> bool:
        """False if the user stopped it before the end. Raises BenchError if a server or a warm-up fails."""
        try:
            with contextlib.ExitStack() as stack:
                sides = self._start(stack)
                self._warm_up(sides)
                for turn in range(self.plan.rounds):
                    self.ground.progress.step(f"round {turn + 1} of {self.plan.rounds}")
                    ready: tuple[Task, int] | None = None
                    for task, width, way in self.plan.turns(turn, sides.ways):
                        asked = self._bodies(f"round {turn}", task, width, self.plan.max_tokens)
                        if ready != (task, width):
                            sides.read(asked)
                            ready = (task, width)
                        self.runs.append(self._measure(sides, turn, task, width, way, asked))
        except KeyboardInterrupt:
            return False
        return True

    def _start(self, stack: contextlib.ExitStack) -> "Sides":
        server = stack.enter_context(self.ground.pomona(self.ground.scratch / "home", self._config()))
        try:
            ways = self.plan.among(methods_of(server))
        except ValueError as error:
            raise BenchError(f"--ways: {error}") from error
        peer: Target | None = None
        if self.plan.compare:
            port = claim_port(0)
            command = mlx_lm_server(self.ground.folder, port, self.ground.env, self.ground.ready_timeout_s)
            stack.enter_context(serving(command))
            peer = mlx_lm_target(port)
        return Sides(server=server, peer=peer, ways=ways, depth=self.plan.depth)

    def _warm_up(self, sides: "Sides") -> None:
        """Greedy and sampled, each way at each width."""
        kinds = tuple({task.sampled: task for task in reversed(self.plan.tasks)}.values())
        for task, width, way in replace(self.plan, tasks=kinds).turns(0, sides.ways):
            self.ground.progress.step(f"  warm-up: {task}, {width} rows, {way}")
            for outcome in sides.ask(way, self._bodies(f"warm-up {way}", task, width, FEW)):
                if isinstance(outcome, Failure):
                    raise BenchError(f"{way} failed in warm-up: {outcome.reason}")

    def _config(self) -> str:
        """Pomona's configuration: room for the widest batch, and where guesses may come from."""
        text = f"[worker]\nmax_running = {max(DEFAULT_ROWS, *self.plan.widths)}\n"
        settings = []
        if self.draft_model is not None:
            settings.append(f"draft_model = {json.dumps(str(self.draft_model))}")
        if self.layers is not None:
            settings.append(f"layers = {self.layers}")
        return text + self.ground.speculation("\n".join(settings))

    def _bodies(self, name: str, task: Task, width: int, max_tokens: int) -> list[Body]:
        """Each way gets the same ones in a round, and no other round does."""
        return bodies(task, width, f"{self.plan.seed} {name} {task} {width}", self.plan.words, max_tokens)

    def _measure(self, sides: "Sides", turn: int, task: Task, width: int, way: Way, asked: Sequence[Body]) -> DraftRun:
        before = None if way is Way.MLX_LM else scrape_decode(sides.server.url)
        outcomes = sides.ask(way, asked)
        steps = None if before is None else scrape_decode(sides.server.url) - before
        run = run_of(turn, task, width, way, outcomes, steps)
        speed = "-" if run.decode_tokens_per_s is None else f"{run.decode_tokens_per_s:.1f}"
        self.ground.progress.step(f"  {task}, {width} rows, {way}: {speed} tokens/s, {run.accepted} guesses accepted")
        return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The servers, started; each is idle while the other one runs."""

    server: Pomona
    peer: Target | None
    """mlx_lm.server, where it is compared."""
    ways: tuple[Way, ...]
    depth: int | None

    def ask(self, way: Way, asked: Sequence[Body]) -> list[Outcome]:
        """All at once; outcomes in the order of the requests."""
        if way is Way.MLX_LM:
            if self.peer is None:
                raise BenchError("mlx_lm.server was not started")
            return asyncio.run(_batch(self.peer, asked))
        speculation: Body = {"method": way.value}
        if self.depth is not None:
            speculation["depth"] = self.depth
        return asyncio.run(_batch(self.server.target, [{**body, "speculation": speculation} for body in asked]))

    def read(self, asked: Sequence[Body]) -> None:
        """Both servers compute the prompts beforehand, so that decoding is what is measured. Raises BenchError."""
        for target in (self.server.target, *((self.peer,) if self.peer is not None else ())):
            for body in asked:
                once = {name: value for name, value in body.items() if not name.startswith("stream")}
                try:
                    response = httpx.post(
                        f"{target.url}/chat/completions",
                        json={**once, "model": target.model, "max_tokens": 1},
                        timeout=ASK_S,
                        trust_env=False,
                    )
                    response.raise_for_status()
                except httpx.HTTPError as error:
                    raise BenchError(f"a prompt could not be read: {error}") from error


def methods_of(server: Pomona) -> tuple[str, ...]:
    """Methods of speculation that the only model of the server has. Raises BenchError."""
    try:
        response = httpx.get(f"{server.target.url}/models", timeout=PROBE_S, trust_env=False)
        (model,) = msgspec.json.decode(response.raise_for_status().content, type=_Models).data
    except (httpx.HTTPError, msgspec.DecodeError, ValueError) as error:
        raise BenchError(f"{server.url} does not tell its model's methods of speculation: {error}") from error
    return model.speculation_methods or ()


async def _batch(target: Target, asked: Sequence[Body]) -> list[Outcome]:
    url = f"{target.url}/chat/completions"
    limits = httpx.Limits(max_connections=len(asked), max_keepalive_connections=len(asked))
    async with httpx.AsyncClient(timeout=ASK_S, limits=limits, trust_env=False) as http:
        requests = (
            fetch(http, url, {**body, "model": target.model}, AnswerReader(time.perf_counter()), ASK_S)
            for body in asked
        )
        return list(await asyncio.gather(*requests))

"""Runs `bench cache --trace`: the same conversations through Pomona and mlx_lm.server, with equal memory."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from pomona.cli.bench.contenders import mlx_lm_server, mlx_lm_target
from pomona.cli.bench.conversation import ask, question, system_prompt
from pomona.cli.bench.counters import total
from pomona.cli.bench.ground import Ground
from pomona.cli.bench.load import Message, Target
from pomona.cli.bench.server import claim_port, serving
from pomona.cli.bench.trace import TracePlan, TraceWay, Visit, Visited, budget_of, visited, visits

EVERYTHING = 1 << 50
"""Bytes that no trace takes."""
HELD = "pomona_worker_ram_bytes"
TOLD_EVERY = 50
"""Requests between two lines of progress."""


@dataclass(slots=True, kw_only=True)
class TraceBench:
    """`answered` grows as it goes, so an interrupt loses nothing."""

    plan: TracePlan
    ground: Ground
    ways: tuple[TraceWay, ...]
    """After ALL, which comes first and tells the budget of the others."""
    answered: dict[TraceWay, list[Visited]] = field(default_factory=dict)
    working_set_bytes: int | None = None

    def run(self) -> bool:
        """False if the user stopped it before the end. Raises BenchError if a server or a request fails."""
        try:
            with self._pomona(f"[cache]\nenabled = false\nram_bytes = {EVERYTHING}\n") as (target, url):
                self._trace(TraceWay.ALL, target)
                self.working_set_bytes = int(total(url, HELD))
            budget = budget_of(self.plan, self.working_set_bytes)
            for way in self.ways:
                with self._serving(way, budget) as target:
                    self._trace(way, target)
        except KeyboardInterrupt:
            return False
        return True

    @contextlib.contextmanager
    def _serving(self, way: TraceWay, budget: int) -> Iterator[Target]:
        match way:
            case TraceWay.MLX_LM:
                port, here = claim_port(self.ground.port), self.ground
                command = mlx_lm_server(here.folder, port, here.env, here.ready_timeout_s, prompt_cache_bytes=budget)
                with serving(command):
                    yield mlx_lm_target(port)
            case TraceWay.MEMORY | TraceWay.DISK:
                disk = "true" if way is TraceWay.DISK else "false"
                with self._pomona(f"[cache]\nenabled = {disk}\nram_bytes = {budget}\n") as (target, _):
                    yield target
            case TraceWay.ALL:
                raise ValueError("what has room for everything has no budget")
            case _:
                assert_never(way)

    @contextlib.contextmanager
    def _pomona(self, config: str) -> Iterator[tuple[Target, str]]:
        with (
            tempfile.TemporaryDirectory(prefix="home-", dir=self.ground.scratch) as home,
            self.ground.pomona(Path(home), config) as server,
        ):
            yield server.target, server.url

    def _trace(self, way: TraceWay, target: Target) -> None:
        """One request after the other; what a conversation was answered is part of its next turn."""
        self.ground.progress.step(f"{way}: {self.plan.conversations * self.plan.turns} requests")
        ask(target, [question(f"{self.plan.seed} {way} warm-up")], 4)
        answered = self.answered.setdefault(way, [])
        said: dict[int, list[Message]] = {}
        for visit in visits(self.plan):
            messages = said.setdefault(visit.conversation, [self._system(visit)])
            messages.append(self._question(visit))
            answer = ask(target, messages, self.plan.max_tokens)
            messages.append({"role": "assistant", "content": answer.text})
            answered.append(visited(visit, answer))
            if len(answered) % TOLD_EVERY == 0:
                self.ground.progress.step(f"  {len(answered)} answered")

    def _system(self, visit: Visit) -> Message:
        return system_prompt(f"{self.plan.seed} trace {visit.system}", self.plan.system_words)

    def _question(self, visit: Visit) -> Message:
        return question(f"{self.plan.seed} {visit.conversation} {visit.turn}", self.plan.question_words)

"""Runs `bench cache`: a system prompt cold, from memory, and from disk behind a kill; then a chat that grows."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from pomona.cli.bench.answer import Answer
from pomona.cli.bench.conversation import ask, question, system_prompt
from pomona.cli.bench.counters import STORED, total
from pomona.cli.bench.ground import Ground, Pomona
from pomona.cli.bench.load import Message
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.reuse import CachePlan, ChatTurn, Reused, Source, chat_turn, reused

STORE_S = 60.0
"""Seconds that blocks may take to reach the disk."""
QUIET_S = 2.0
"""Seconds without another stored block that count as the end of storing."""
POLL_S = 0.1
LAST_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBench:
    """`requests` and `turns` grow as it goes, so an interrupt loses nothing."""

    plan: CachePlan
    ground: Ground
    requests: list[Reused] = field(default_factory=list)
    turns: list[ChatTurn] = field(default_factory=list)

    def run(self) -> bool:
        """False if the user stopped it before the end. Raises BenchError if a server or a request fails."""
        try:
            for turn in range(self.plan.rounds):
                self.ground.progress.step(f"round {turn + 1} of {self.plan.rounds}")
                self._round(turn)
            if self.plan.turns:
                with self._serving() as server:
                    self._chat(server)
        except KeyboardInterrupt:
            return False
        return True

    def _round(self, turn: int) -> None:
        system = system_prompt(f"{self.plan.seed} round {turn}", self.plan.system_words)
        with self._serving() as server:
            self._ask(server, turn, Source.COLD, system)
            self._ask(server, turn, Source.MEMORY, system)
            _wait_until_stored(server)
            os.killpg(server.process.process.pid, signal.SIGKILL)  # every process of it
            server.process.process.wait(LAST_S)
        with self._serving() as server:
            self._ask(server, turn, Source.DISK, system)

    def _ask(self, server: Pomona, turn: int, source: Source, system: Message) -> None:
        asked = question(f"{self.plan.seed} {turn} {source}", self.plan.question_words)
        one = reused(turn, source, ask(server.target, [system, asked], self.plan.max_tokens))
        self.requests.append(one)
        cached = f"{one.cached_tokens} of {one.prompt_tokens} tokens cached"
        self.ground.progress.step(f"  {source}: {one.ttft_ms:.0f} ms to the first token, {cached}")

    def _chat(self, server: Pomona) -> None:
        messages: list[Message] = []
        before: Answer | None = None
        for turn in range(self.plan.turns):
            messages.append(question(f"{self.plan.seed} turn {turn}", self.plan.question_words))
            answer = ask(server.target, messages, self.plan.max_tokens)
            messages.append({"role": "assistant", "content": answer.text})
            one = chat_turn(turn, answer, before)
            self.turns.append(one)
            before = answer
            self.ground.progress.step(f"  turn {turn}: {one.computed_tokens} tokens computed, {one.new_tokens} new")

    @contextlib.contextmanager
    def _serving(self) -> Iterator[Pomona]:
        """One home for all, so that what is stored stays; a warm-up request that shares nothing with the others."""
        with self.ground.pomona(self.ground.scratch / "home") as server:
            ask(server.target, [question(f"{self.plan.seed} warm-up {time.monotonic()}", self.plan.question_words)], 4)
            yield server


def _wait_until_stored(server: Pomona) -> None:
    """Raises BenchError if nothing was stored in time."""
    deadline = time.monotonic() + STORE_S
    stored, changed = total(server.url, STORED), time.monotonic()
    while not stored or time.monotonic() < changed + QUIET_S:
        if time.monotonic() > deadline:
            raise BenchError(f"nothing was stored within {STORE_S:g} s: the prompt is shorter than a block")
        time.sleep(POLL_S)
        if (more := total(server.url, STORED)) != stored:
            stored, changed = more, time.monotonic()

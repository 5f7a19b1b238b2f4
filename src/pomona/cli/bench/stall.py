"""Runs `bench stall`: a long prompt alone, and one beside streams that already run."""

import asyncio
import time
from dataclasses import dataclass, field

import httpx

from pomona.cli.bench.answer import Answer, AnswerReader
from pomona.cli.bench.conversation import ASK_S, ask, question, send
from pomona.cli.bench.ground import Ground
from pomona.cli.bench.load import Target
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.stalls import Stall, StallPlan, stall_of

SETTLED = 8
"""Deltas of each stream before the long prompt comes."""
ENDLESS = 4000
"""Tokens that a stream may have; it is broken off before."""
FEW = 4
POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StallBench:
    """`runs` grows as it goes, so an interrupt loses nothing."""

    plan: StallPlan
    ground: Ground
    runs: list[Stall] = field(default_factory=list)

    def run(self) -> bool:
        """False if the user stopped it before the end. Raises BenchError if the server or a request fails."""
        try:
            config = f"[worker]\nstall_s = {self.plan.stall_s}\n" + self.ground.speculation('method = "off"')
            with self.ground.pomona(self.ground.scratch / "home", config) as server:
                target = server.target
                ask(target, [question(f"{self.plan.seed} warm-up")], FEW)
                for turn in range(self.plan.rounds):
                    self.runs.append(self._round(target, turn))
        except KeyboardInterrupt:
            return False
        return True

    def _round(self, target: Target, turn: int) -> Stall:
        self.ground.progress.step(f"round {turn + 1} of {self.plan.rounds}")
        seed = f"{self.plan.seed} round {turn}"
        alone = ask(target, [question(f"{seed} alone", self.plan.prompt_words)], FEW)
        self.ground.progress.step(f"  alone: {alone.ttft:.2f} s to the first token of {alone.prompt_tokens} tokens")
        stall = asyncio.run(self._beside(target, turn, seed, alone))
        beside = f"{stall.beside_ttft_ms / 1e3:.2f} s, longest gap {stall.longest_gap_ms:.0f} ms"
        self.ground.progress.step(f"  beside {self.plan.streams} streams: {beside}, a step {stall.step_ms:.0f} ms")
        return stall

    async def _beside(self, target: Target, turn: int, seed: str, alone: Answer) -> Stall:
        now = time.perf_counter()
        readers = [AnswerReader(now) for _ in range(self.plan.streams)]
        async with httpx.AsyncClient(timeout=ASK_S, trust_env=False) as http:
            streams = [
                asyncio.create_task(send(http, target, [question(f"{seed} {index}")], ENDLESS, reader))
                for index, reader in enumerate(readers)
            ]
            try:
                await _until_seen(readers, [SETTLED] * len(readers))
                sent = time.perf_counter()
                long = [question(f"{seed} beside", self.plan.prompt_words)]
                beside = await send(http, target, long, FEW, AnswerReader(sent))
                await _until_seen(readers, [reader.seen + 1 for reader in readers])
            finally:
                for stream in streams:
                    stream.cancel()
                await asyncio.gather(*streams, return_exceptions=True)
        if not isinstance(beside, Answer):
            raise BenchError(f"the long prompt failed: {beside}")
        try:
            return stall_of(turn, alone, beside, [reader.moments for reader in readers], sent)
        except ValueError as error:
            raise BenchError(f"{error}: they ended by themselves, or failed; ask for a shorter prompt") from error


async def _until_seen(readers: list[AnswerReader], counts: list[int]) -> None:
    """Raises BenchError if a stream ends, or gets no text, before it has so many deltas."""
    deadline = time.perf_counter() + ASK_S
    while any(reader.seen < count for reader, count in zip(readers, counts, strict=True)):
        if time.perf_counter() > deadline or not all(reader.running for reader in readers):
            raise BenchError("a stream ended, or stood still, while the others ran")
        await asyncio.sleep(POLL_S)

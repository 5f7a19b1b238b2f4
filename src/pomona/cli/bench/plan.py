"""What a comparison measures and in which order. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pomona.cli.bench.load import Load
from pomona.cli.bench.mixture import Mixture

Item = TypeVar("Item")

WARM_UP_TOKENS = 8


class Contender(StrEnum):
    POMONA = "pomona"
    MLX_LM = "mlx_lm"
    """mlx_lm.server."""
    BARE = "stream_generate"
    """mlx_lm.stream_generate in one process, a single stream without a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole of a comparison."""

    streams: tuple[int, ...] = (1, 8, 16)
    rounds: int = 3
    max_tokens: int = 64
    prompt_words: int = 40
    requests_per_stream: int = 2
    min_requests: int = 4
    single: bool = True
    """Also compare one stream over HTTP with one stream in one process."""
    single_requests: int = 4
    seed: str = "0"

    def load(self, turn: int, concurrency: int) -> Load:
        """The load of one round at one concurrency: every contender gets this one, no other round does."""
        requests = max(self.min_requests, concurrency * self.requests_per_stream)
        return self._load(f"round {turn} streams {concurrency}", concurrency, requests, self.max_tokens)

    def single_load(self, turn: int) -> Load:
        return self._load(f"round {turn} single", 1, self.single_requests, self.max_tokens)

    def warm_ups(self, turn: int) -> Iterator[Load]:
        """Not measured: the greedy and the sampling path alone, then every batch width that will be measured."""
        greedy = self._load(f"round {turn} warm-up greedy", 1, 1, WARM_UP_TOKENS)
        yield greedy
        yield Load(
            concurrency=1,
            requests=1,
            max_tokens=Mixture.of(WARM_UP_TOKENS),
            prompt_words=Mixture.of(self.prompt_words),
            temperature=0.8,
            top_p=0.9,
            seed=f"{self.seed} round {turn} warm-up sampled",
        )
        for concurrency in self.streams:
            if concurrency > 1:
                seed = f"round {turn} warm-up streams {concurrency}"
                yield self._load(seed, concurrency, concurrency, WARM_UP_TOKENS)

    def _load(self, seed: str, concurrency: int, requests: int, max_tokens: int) -> Load:
        return Load(
            concurrency=concurrency,
            requests=requests,
            max_tokens=Mixture.of(max_tokens),
            prompt_words=Mixture.of(self.prompt_words),
            seed=f"{self.seed} {seed}",
        )


def in_turn(order: Sequence[Item], turn: int) -> Sequence[Item]:
    """One round's order: forwards in even rounds, backwards in odd ones (A B C C B A …).

    A machine that warms up or slows down over the run then favours nobody.
    """
    return order if turn % 2 == 0 else order[::-1]


def turns(plan: Plan) -> Iterator[tuple[int, Contender]]:
    """Who runs in which round."""
    order = [Contender.POMONA, Contender.MLX_LM]
    if plan.single:
        order.insert(0, Contender.BARE)
    for turn in range(plan.rounds):
        for contender in in_turn(order, turn):
            yield turn, contender

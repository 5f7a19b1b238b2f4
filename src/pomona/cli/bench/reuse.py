"""The result of `bench cache`, as it is printed, and how it follows from what was measured. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pomona.cli.bench.answer import Answer
from pomona.cli.bench.comparison import Environment
from pomona.cli.bench.metrics import Ratio, ratio_of


class Source(StrEnum):
    """Where the KV of a system prompt comes from."""

    COLD = "cold"
    """Nobody has computed it."""
    MEMORY = "memory"
    """The worker answered with it just before."""
    DISK = "disk"
    """Every process was killed since, and started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    rounds: int
    system_words: int
    question_words: int
    turns: int
    max_tokens: int
    seed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reused:
    """One request behind a long system prompt."""

    round: int
    source: Source
    prompt_tokens: int
    cached_tokens: int
    ttft_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One turn of a growing chat."""

    turn: int
    prompt_tokens: int
    new_tokens: int
    """Prompt tokens that the turn before neither had in its prompt nor answered."""
    computed_tokens: int
    """Prompt tokens that were not restored."""
    ttft_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    environment: Environment
    plan: CachePlan
    memory: Ratio | None
    """TTFT with the KV in memory / cold: below 1 the cache pays."""
    disk: Ratio | None
    """TTFT after every process was killed and started again / cold."""
    beyond_new: int | None
    """The most tokens that a turn of the chat computed beyond its new ones; the first turn does not count."""
    interrupted: bool
    requests: tuple[Reused, ...]
    turns: tuple[ChatTurn, ...]


def reused(turn: int, source: Source, answer: Answer) -> Reused:
    return Reused(
        round=turn,
        source=source,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        ttft_ms=round(answer.ttft * 1e3, 3),
    )


def chat_turn(turn: int, answer: Answer, before: Answer | None) -> ChatTurn:
    held = 0 if before is None else before.prompt_tokens + before.completion_tokens
    return ChatTurn(
        turn=turn,
        prompt_tokens=answer.prompt_tokens,
        new_tokens=answer.prompt_tokens - held,
        computed_tokens=answer.prompt_tokens - answer.cached_tokens,
        ttft_ms=round(answer.ttft * 1e3, 3),
    )


def conclude(
    environment: Environment,
    plan: CachePlan,
    requests: Sequence[Reused],
    turns: Sequence[ChatTurn],
    *,
    interrupted: bool,
) -> Reuse:
    """Ratios from the rounds that have both of their values."""
    later = [turn.computed_tokens - turn.new_tokens for turn in turns if turn.turn > 0]
    return Reuse(
        environment=environment,
        plan=plan,
        memory=_against_cold(requests, Source.MEMORY),
        disk=_against_cold(requests, Source.DISK),
        beyond_new=max(later, default=None),
        interrupted=interrupted,
        requests=tuple(requests),
        turns=tuple(turns),
    )


def _against_cold(requests: Sequence[Reused], source: Source) -> Ratio | None:
    ttft = {(one.round, one.source): one.ttft_ms for one in requests}
    rounds = sorted({one.round for one in requests})
    pairs = ((ttft.get((turn, source)), ttft.get((turn, Source.COLD))) for turn in rounds)
    return ratio_of((value, cold) for value, cold in pairs if value is not None and cold is not None)

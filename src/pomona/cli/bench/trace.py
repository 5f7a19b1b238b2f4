"""A trace of conversations with shared system prompts, and the result of `bench cache --trace`. Pure."""

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pomona.cli.bench.answer import Answer
from pomona.cli.bench.comparison import Environment
from pomona.cli.bench.quantile import Percentiles, percentiles_ms


class TraceWay(StrEnum):
    """Who answers the trace, and with what memory for prefixes."""

    ALL = "all in memory"
    """Pomona with room for everything: what can be had at all, and how much memory that takes."""
    MEMORY = "memory"
    """Pomona with the budget, and no disk."""
    DISK = "memory and disk"
    """Pomona with the budget, and its disk tier."""
    MLX_LM = "mlx_lm"
    """mlx_lm.server with the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePlan:
    conversations: int
    turns: int
    """Of each conversation."""
    systems: int
    """System prompts that they share; the first is the most popular, the n-th has a n-th of its conversations."""
    system_words: int
    question_words: int
    active: int
    """Conversations that are under way at once."""
    share: float
    """The budget, as a share of the memory that the whole trace takes."""
    max_tokens: int
    seed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One turn of one conversation."""

    conversation: int
    system: int
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Visited:
    """A visit as it was answered."""

    conversation: int
    turn: int
    prompt_tokens: int
    cached_tokens: int
    ttft_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLine:
    """The trace as one way answered it."""

    way: TraceWay
    requests: int
    budget_bytes: int | None
    """For prefixes in memory; None where all has room."""
    prompt_tokens: int
    cached_tokens: int
    hit_ratio: float
    """Prompt tokens that were not computed, as a share of all."""
    ttft_ms: Percentiles | None
    mean_ttft_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    environment: Environment
    plan: TracePlan
    working_set_bytes: int | None
    """What Pomona held in memory at the end when all of the trace had room; None if it was not so far."""
    lines: tuple[TraceLine, ...]
    interrupted: bool
    requests: dict[TraceWay, tuple[Visited, ...]]


def visits(plan: TracePlan) -> Iterator[Visit]:
    """The turns of all conversations in the order in which they come: the same for the same plan.

    Some are under way at once, and any of these may be next; one that has ended makes room for a new one.
    """
    draw = random.Random(f"{plan.seed} trace")
    popularity = [1 / (1 + number) for number in range(plan.systems)]
    systems = draw.choices(range(plan.systems), popularity, k=plan.conversations)
    waiting = list(range(plan.conversations))[::-1]
    under_way: list[int] = []
    turns = [0] * plan.conversations
    while waiting or under_way:
        while waiting and len(under_way) < plan.active:
            under_way.append(waiting.pop())
        number = draw.choice(under_way)
        yield Visit(conversation=number, system=systems[number], turn=turns[number])
        turns[number] += 1
        if turns[number] == plan.turns:
            under_way.remove(number)


def visited(visit: Visit, answer: Answer) -> Visited:
    return Visited(
        conversation=visit.conversation,
        turn=visit.turn,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        ttft_ms=round(answer.ttft * 1e3, 3),
    )


def budget_of(plan: TracePlan, working_set_bytes: int) -> int:
    return max(1, int(plan.share * working_set_bytes))


def conclude(
    environment: Environment,
    plan: TracePlan,
    working_set_bytes: int | None,
    answered: Mapping[TraceWay, Sequence[Visited]],
    *,
    interrupted: bool,
) -> Traced:
    """A line for each way that was begun."""
    budget = None if working_set_bytes is None else budget_of(plan, working_set_bytes)
    return Traced(
        environment=environment,
        plan=plan,
        working_set_bytes=working_set_bytes,
        lines=tuple(
            _line(way, None if way is TraceWay.ALL else budget, answers) for way, answers in answered.items() if answers
        ),
        interrupted=interrupted,
        requests={way: tuple(answers) for way, answers in answered.items()},
    )


def _line(way: TraceWay, budget: int | None, answers: Sequence[Visited]) -> TraceLine:
    prompt, cached = (sum(getattr(one, of) for one in answers) for of in ("prompt_tokens", "cached_tokens"))
    return TraceLine(
        way=way,
        requests=len(answers),
        budget_bytes=budget,
        prompt_tokens=prompt,
        cached_tokens=cached,
        hit_ratio=round(cached / prompt, 4) if prompt else 0.0,
        ttft_ms=percentiles_ms(one.ttft_ms / 1e3 for one in answers),
        mean_ttft_ms=round(statistics.fmean(one.ttft_ms for one in answers), 3),
    )

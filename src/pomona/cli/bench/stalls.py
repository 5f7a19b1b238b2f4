"""The result of `bench stall`, as it is printed, and how it follows from what was measured. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pomona.cli.bench.answer import Answer
from pomona.cli.bench.comparison import Environment
from pomona.cli.bench.metrics import Ratio, ratio_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StallPlan:
    rounds: int
    streams: int
    """That run when the long prompt comes."""
    prompt_words: int
    """Of the long prompt."""
    stall_s: float
    """What Pomona is told as `worker.stall_s`."""
    seed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """One long prompt alone, and another of its size beside streams."""

    round: int
    prompt_tokens: int
    alone_ttft_ms: float
    beside_ttft_ms: float
    step_ms: float
    """Median gap of the streams before the prompt came."""
    longest_gap_ms: float
    """Of the streams, from the moment at which the prompt was sent to its first token."""
    meanwhile_tokens_per_s: float
    """Of all streams together in that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    environment: Environment
    plan: StallPlan
    ttft: Ratio | None
    """TTFT beside the streams / alone."""
    stall: Ratio | None
    """Longest gap / (stall bound + one step): above 1 the bound was not kept."""
    interrupted: bool
    runs: tuple[Stall, ...]


def stall_of(turn: int, alone: Answer, beside: Answer, streams: Sequence[Sequence[float]], sent: float) -> Stall:
    """`streams` are the moments of the running streams' deltas, on the clock of `sent`. Raises ValueError if a
    stream had no two deltas before the prompt, or none behind its first token.
    """
    first = beside.deltas[0]
    before = [later - earlier for moments in streams for earlier, later in pairwise(moments) if later <= sent]
    meanwhile = [
        later - earlier
        for moments in streams
        for earlier, later in pairwise(moments)
        if later > sent and earlier < first
    ]
    if not before or any(not moments or moments[-1] < first for moments in streams):
        raise ValueError("the streams did not run all the time")
    return Stall(
        round=turn,
        prompt_tokens=beside.prompt_tokens,
        alone_ttft_ms=round(alone.ttft * 1e3, 3),
        beside_ttft_ms=round(beside.ttft * 1e3, 3),
        step_ms=round(statistics.median(before) * 1e3, 3),
        longest_gap_ms=round(max(meanwhile) * 1e3, 3),
        meanwhile_tokens_per_s=round(
            sum(sent < moment <= first for moments in streams for moment in moments) / (first - sent), 3
        ),
    )


def conclude(environment: Environment, plan: StallPlan, runs: Sequence[Stall], *, interrupted: bool) -> Stalls:
    return Stalls(
        environment=environment,
        plan=plan,
        ttft=ratio_of((run.beside_ttft_ms, run.alone_ttft_ms) for run in runs),
        stall=ratio_of((run.longest_gap_ms, plan.stall_s * 1e3 + run.step_ms) for run in runs),
        interrupted=interrupted,
        runs=tuple(runs),
    )

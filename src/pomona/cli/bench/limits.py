"""The result of `bench limit`, as it is printed, and how it follows from what was measured. Pure.

A batch decodes at full width from the moment at which its last row has begun until its first row ends; that phase is
what a step loop is compared by. The whole, with prefill and the uneven ends, is told beside it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise, product

from pomona.cli.bench.answer import Answer, Failure, Outcome
from pomona.cli.bench.comparison import Environment
from pomona.cli.bench.floor import FloorRun, Loader
from pomona.cli.bench.load import Load
from pomona.cli.bench.metrics import FIRST_FAILURES, Ratio, median_of, ratio_of
from pomona.cli.bench.mixture import Mixture
from pomona.cli.bench.plan import in_turn
from pomona.cli.bench.quantile import Percentiles, percentiles_ms


class Side(StrEnum):
    BARE = "bare"
    """mlx-lm's model in one process, no server."""
    POMONA = "pomona"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPlan:
    widths: tuple[int, ...]
    rounds: int
    max_tokens: int
    prompt_words: int
    server: bool
    """False: only the bare loop runs."""
    loader: Loader
    seed: str

    def load(self, name: object, width: int, max_tokens: int) -> Load:
        """`width` requests at once; both sides of a round get the same prompts, and no other round does."""
        return Load(
            concurrency=width,
            requests=width,
            max_tokens=Mixture.of(max_tokens),
            prompt_words=Mixture.of(self.prompt_words),
            seed=f"{self.seed} {name} width {width}",
            ignore_eos=True,
        )

    def turns(self, turn: int) -> Sequence[tuple[int, Side]]:
        """Who runs at which width."""
        sides = [Side.BARE, Side.POMONA] if self.server else [Side.BARE]
        return in_turn(list(product(self.widths, sides)), turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """The phase in which all rows decode."""

    seconds: float
    tokens: float
    """A delta counts as its answer's tokens over its answer's deltas, so this need not be whole."""
    tokens_per_s: float
    step_ms: float
    """Time for one token of every row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthRun:
    """One batch of `width` rows on one side."""

    round: int
    side: Side
    width: int
    prompt_tokens: int
    completion_tokens: int
    wall_s: float
    tokens_per_s: float
    decode: Decode | None
    """None if the first row ended before the last began: more tokens are needed."""
    errors: int = 0
    first_errors: tuple[str, ...] = ()
    worker_step_ms: float | None = None
    """Mean decode step by the worker's own counters; None for the bare loop."""
    added_ms: Percentiles | None = None
    """Every gap between two deltas at full width, less `worker_step_ms`: what lies around a step, and its jitter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One width over all rounds; medians, None where no round gave a value."""

    width: int
    bare_step_ms: float | None
    bare_tokens_per_s: float | None
    pomona_step_ms: float | None
    pomona_tokens_per_s: float | None
    decode: Ratio | None
    """Pomona / bare loop, tokens per second at full width: above 1, Pomona is faster."""
    whole: Ratio | None
    """The same of the whole batch, prefill included."""
    added_p50_ms: float | None
    added_p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    environment: Environment
    plan: LimitPlan
    lines: tuple[Line, ...]
    errors: int
    interrupted: bool
    runs: tuple[WidthRun, ...]


def of_floor(turn: int, width: int, run: FloorRun) -> WidthRun:
    """The bare loop's rows begin and end together."""
    first, last = run.steps[0], run.steps[-1]
    tokens = width * len(run.steps)
    return WidthRun(
        round=turn,
        side=Side.BARE,
        width=width,
        prompt_tokens=run.prompt_tokens,
        completion_tokens=tokens,
        wall_s=round(last, 6),
        tokens_per_s=_rate(tokens, last),
        decode=_decode(last - first, tokens - width, width),
    )


def of_outcomes(turn: int, width: int, outcomes: Sequence[Outcome], worker_step_s: float | None) -> WidthRun:
    """What Pomona's answers over HTTP amount to; with a failure among them there is no phase at full width."""
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Failure)]
    tokens = sum(answer.completion_tokens for answer in answers)
    wall = max((one.finished for one in answers), default=0.0) - min((one.started for one in answers), default=0.0)
    decode, added = None, None
    if len(answers) == width:
        begun, ended = max(one.deltas[0] for one in answers), min(one.deltas[-1] for one in answers)
        within = sum(_tokens_within(one, begun, ended) for one in answers)
        decode = _decode(ended - begun, within, width)
        if worker_step_s is not None:
            added = percentiles_ms(gap - worker_step_s for one in answers for gap in _gaps_within(one, begun, ended))
    return WidthRun(
        round=turn,
        side=Side.POMONA,
        width=width,
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        completion_tokens=tokens,
        wall_s=round(wall, 6),
        tokens_per_s=_rate(tokens, wall),
        decode=decode,
        errors=len(reasons),
        first_errors=tuple(reasons[:FIRST_FAILURES]),
        worker_step_ms=None if worker_step_s is None else round(worker_step_s * 1e3, 4),
        added_ms=added,
    )


def conclude(environment: Environment, plan: LimitPlan, runs: Sequence[WidthRun], *, interrupted: bool) -> Limits:
    """Ratios from the rounds that both sides finished."""
    return Limits(
        environment=environment,
        plan=plan,
        lines=tuple(_line(width, [run for run in runs if run.width == width]) for width in plan.widths),
        errors=sum(run.errors for run in runs),
        interrupted=interrupted,
        runs=tuple(runs),
    )


def _line(width: int, runs: Sequence[WidthRun]) -> Line:
    bare = {run.round: run for run in runs if run.side is Side.BARE}
    pomona = {run.round: run for run in runs if run.side is Side.POMONA and not run.errors}
    both = sorted(bare.keys() & pomona.keys())
    decoded = [(pomona[turn].decode, bare[turn].decode) for turn in both]
    added = [run.added_ms for run in pomona.values() if run.added_ms is not None]
    return Line(
        width=width,
        bare_step_ms=median_of(run.decode.step_ms for run in bare.values() if run.decode),
        bare_tokens_per_s=median_of(run.decode.tokens_per_s for run in bare.values() if run.decode),
        pomona_step_ms=median_of(run.decode.step_ms for run in pomona.values() if run.decode),
        pomona_tokens_per_s=median_of(run.decode.tokens_per_s for run in pomona.values() if run.decode),
        decode=ratio_of((ours.tokens_per_s, theirs.tokens_per_s) for ours, theirs in decoded if ours and theirs),
        whole=ratio_of((pomona[turn].tokens_per_s, bare[turn].tokens_per_s) for turn in both),
        added_p50_ms=median_of(values.p50 for values in added),
        added_p99_ms=median_of(values.p99 for values in added),
    )


def _tokens_within(answer: Answer, begun: float, ended: float) -> float:
    within = sum(begun < moment <= ended for moment in answer.deltas)
    return within * answer.completion_tokens / len(answer.deltas)


def _gaps_within(answer: Answer, begun: float, ended: float) -> Iterable[float]:
    inside = [moment for moment in answer.deltas if begun <= moment <= ended]
    return [later - earlier for earlier, later in pairwise(inside)]


def _decode(seconds: float, tokens: float, width: int) -> Decode | None:
    if seconds <= 0 or tokens <= 0:
        return None
    return Decode(
        seconds=round(seconds, 6),
        tokens=round(tokens, 3),
        tokens_per_s=_rate(tokens, seconds),
        step_ms=round(seconds * 1e3 * width / tokens, 4),
    )


def _rate(tokens: float, seconds: float) -> float:
    return round(tokens / seconds, 3) if seconds > 0 else 0.0

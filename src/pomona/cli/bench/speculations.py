"""The result of `bench speculation`, as it is printed, and how it follows from what was measured. Pure."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from pomona.cli.bench.answer import Answer, Failure, Outcome
from pomona.cli.bench.comparison import Environment
from pomona.cli.bench.counters import DecodeCounters
from pomona.cli.bench.metrics import FIRST_FAILURES, Ratio, median_of, ratio_of
from pomona.cli.bench.plan import in_turn
from pomona.cli.bench.tasks import Task


class Way(StrEnum):
    """How a batch is answered: by Pomona with one method of speculation, or by mlx_lm.server."""

    OFF = "off"
    AUTO = "auto"
    NGRAM = "ngram"
    DRAFT = "draft"
    MTP = "mtp"
    LAYERS = "layers"
    MLX_LM = "mlx_lm"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationPlan:
    tasks: tuple[Task, ...]
    widths: tuple[int, ...]
    ways: tuple[Way, ...] | None
    """Beside `off`; None: auto and every method that the model has."""
    compare: bool
    """mlx_lm.server answers the greedy copy task too."""
    rounds: int
    max_tokens: int
    words: int
    """Of each prompt."""
    depth: int | None
    """Guesses at once that requests allow; None: what the server thinks best."""
    seed: str

    def among(self, methods: Sequence[str]) -> tuple[Way, ...]:
        """The ways of answering where the model has these methods. Raises ValueError for one that it lacks.

        The tasks have no grammar, so that what a grammar forces is no way to answer them.
        """
        had = tuple(Way(method) for method in methods if method != "grammar")
        ways = (Way.AUTO, *had) if self.ways is None else self.ways
        for way in ways:
            if way is not Way.AUTO and way not in had:
                raise ValueError(f"this model does not have {way}; it has {', '.join(had) or 'none'}")
        return (Way.OFF, *ways, *((Way.MLX_LM,) if self.compare else ()))

    def turns(self, turn: int, ways: Sequence[Way]) -> Sequence[tuple[Task, int, Way]]:
        """Who answers what: the ways of one batch side by side."""
        order = [
            (task, width, way)
            for task, width, way in product(self.tasks, self.widths, ways)
            if way is not Way.MLX_LM or task is Task.COPY
        ]
        return in_turn(order, turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRun:
    """One batch, answered in one way."""

    round: int
    task: Task
    width: int
    way: Way
    tokens: int
    wall_s: float
    """From the first request sent to the last one ended."""
    tokens_per_s: float
    decode_tokens_per_s: float | None
    """Tokens after the first of each answer / seconds from the first event of any to the end of the last."""
    accepted: int
    """Tokens that had been guessed, as the answers' usage says."""
    rejected: int
    steps: DecodeCounters | None
    """What the worker counted meanwhile; None for mlx_lm.server."""
    errors: int
    first_errors: tuple[str, ...]
    texts: tuple[str, ...]
    """Digests of the answers' texts, in the order of their requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationLine:
    """One way of answering one kind of batch; medians of the rounds."""

    task: Task
    width: int
    way: Way
    decode_tokens_per_s: float | None
    ratio: Ratio | None
    """Decode speed against `off`: above 1 it pays."""
    whole: Ratio | None
    """The same of whole answers, with what is left of their prefill."""
    over_mlx_lm: Ratio | None
    """Decode speed against mlx_lm.server."""
    accepted_per_step: float | None
    """Guesses that one row gained in one step, over all rounds."""
    acceptance: float | None
    """Accepted of all that were verified, over all rounds."""
    verify_ms: float | None
    """One step that verifies."""
    plain_ms: float | None
    """One step that does not."""
    propose_ms: float | None
    """Guessing, for each step that verifies."""
    changed: int
    """Answers whose text is not what `off` gave to the same request; only a tie in rounding may change one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculations:
    environment: Environment
    plan: SpeculationPlan
    lines: tuple[SpeculationLine, ...]
    errors: int
    interrupted: bool
    runs: tuple[DraftRun, ...]


def run_of(
    turn: int, task: Task, width: int, way: Way, outcomes: Sequence[Outcome], steps: DecodeCounters | None
) -> DraftRun:
    """What the answers of one batch amount to."""
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Failure)]
    tokens = sum(answer.completion_tokens for answer in answers)
    ended = max((answer.finished for answer in answers), default=0.0)
    wall = ended - min((answer.started for answer in answers), default=0.0)
    begun = [answer.deltas[0] if answer.opened is None else answer.opened for answer in answers]
    decoding = ended - min(begun, default=0.0)
    later = tokens - len(answers)
    return DraftRun(
        round=turn,
        task=task,
        width=width,
        way=way,
        tokens=tokens,
        wall_s=round(wall, 6),
        tokens_per_s=round(tokens / wall, 3) if wall > 0 else 0.0,
        decode_tokens_per_s=round(later / decoding, 3) if decoding > 0 and later > 0 else None,
        accepted=sum(answer.accepted_tokens for answer in answers),
        rejected=sum(answer.rejected_tokens for answer in answers),
        steps=steps,
        errors=len(reasons),
        first_errors=tuple(reasons[:FIRST_FAILURES]),
        texts=tuple(_digest(answer.text) for answer in answers),
    )


def conclude(
    environment: Environment, plan: SpeculationPlan, runs: Sequence[DraftRun], *, interrupted: bool
) -> Speculations:
    """Ratios from the rounds that both sides finished without an error."""
    ran = {run.way for run in runs}
    return Speculations(
        environment=environment,
        plan=plan,
        lines=tuple(
            _line(task, width, way, [run for run in runs if (run.task, run.width) == (task, width)])
            for task, width, way in plan.turns(0, [way for way in Way if way in ran])
        ),
        errors=sum(run.errors for run in runs),
        interrupted=interrupted,
        runs=tuple(runs),
    )


def _line(task: Task, width: int, way: Way, runs: Sequence[DraftRun]) -> SpeculationLine:
    def of(one: Way) -> dict[int, DraftRun]:
        return {run.round: run for run in runs if run.way is one and not run.errors}

    own, off, peer = of(way), of(Way.OFF), of(Way.MLX_LM)
    steps = DecodeCounters()
    for run in own.values():
        steps += run.steps or DecodeCounters()
    accepted = sum(run.accepted for run in own.values())
    verified = accepted + sum(run.rejected for run in own.values())
    pairs = _pairs(own, off) if way is not Way.OFF else []
    return SpeculationLine(
        task=task,
        width=width,
        way=way,
        decode_tokens_per_s=median_of(run.decode_tokens_per_s for run in own.values()),
        ratio=_decode_ratio(pairs),
        whole=ratio_of((mine.tokens_per_s, other.tokens_per_s) for mine, other in pairs),
        over_mlx_lm=_decode_ratio(_pairs(own, peer) if way is not Way.MLX_LM else []),
        accepted_per_step=_share(steps.saved, steps.rows, 4),
        acceptance=_share(accepted, verified, 4),
        verify_ms=_share(steps.verify_seconds * 1e3, steps.verify_steps, 3),
        plain_ms=_share((steps.seconds - steps.verify_seconds) * 1e3, steps.steps - steps.verify_steps, 3),
        propose_ms=_share(steps.propose_seconds * 1e3, steps.verify_steps, 3),
        changed=sum(a != b for mine, other in pairs for a, b in zip(mine.texts, other.texts, strict=True)),
    )


def _pairs(own: dict[int, DraftRun], other: dict[int, DraftRun]) -> list[tuple[DraftRun, DraftRun]]:
    return [(own[turn], other[turn]) for turn in sorted(own.keys() & other.keys())]


def _decode_ratio(pairs: Sequence[tuple[DraftRun, DraftRun]]) -> Ratio | None:
    return ratio_of((mine.decode_tokens_per_s or 0.0, other.decode_tokens_per_s or 0.0) for mine, other in pairs)


def _share(part: float, whole: float, digits: int) -> float | None:
    return round(part / whole, digits) if whole > 0 else None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

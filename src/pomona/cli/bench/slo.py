"""Goodput: the answers that kept every promise of a service level objective. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pomona.cli.bench.answer import Answer, Left, Outcome
from pomona.cli.bench.quantile import percentile


class GapRule(StrEnum):
    """Which of a request's own gaps is held against the promise."""

    P99 = "p99"
    MAX = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Milliseconds, for each request by itself; None promises nothing."""

    ttft_ms: float | None = None
    gap_ms: float | None = None
    gap_rule: GapRule = GapRule.P99
    tpot_ms: float | None = None

    @property
    def empty(self) -> bool:
        return self.ttft_ms is None and self.gap_ms is None and self.tpot_ms is None

    def met(self, answer: Answer) -> bool:
        """An answer without a gap, or of a single token, breaks no promise about them."""
        kept = self.ttft_ms is None or answer.ttft * 1e3 <= self.ttft_ms
        if self.tpot_ms is not None and answer.tpot is not None:
            kept = kept and answer.tpot * 1e3 <= self.tpot_ms
        if self.gap_ms is not None and answer.gaps:
            share = 1.0 if self.gap_rule is GapRule.MAX else 0.99
            kept = kept and percentile(sorted(answer.gaps), share) * 1e3 <= self.gap_ms
        return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    slo: Slo
    met: int
    share: float
    """Of the answers and the failures together, 0..1; what its client broke off is left out."""
    per_s: float
    """Requests that kept every promise, a second of the whole load."""


def goodput(outcomes: Iterable[Outcome], slo: Slo, wall_s: float) -> Goodput | None:
    """None where nothing was promised or no request counts."""
    judged = [outcome for outcome in outcomes if not isinstance(outcome, Left)]
    if slo.empty or not judged:
        return None
    met = sum(isinstance(outcome, Answer) and slo.met(outcome) for outcome in judged)
    per_s = met / wall_s if wall_s > 0 else 0.0
    return Goodput(slo=slo, met=met, share=round(met / len(judged), 4), per_s=round(per_s, 3))

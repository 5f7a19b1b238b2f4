"""One round as it might be: a width, who drafts in it, how far it takes the rows, and its seconds.

All rows wait for the widest, so what one gains another pays for. What counts is the mean of the rows' seconds per
token: a round in which one row gains much and seven wait is as bad as it feels to the seven.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pomona.config import Method
from pomona.workers.speculation.draft_cost import DraftCost


class Promise(NamedTuple):
    """What one row's drafts promise; entry i of the lists is of i drafts, and the last of all deeper ones too."""

    place: int
    """Of its outlook among all."""
    method: Method
    bound: int
    """Drafts that it can have."""
    ordered: int
    """Drafts that it is to have whatever the round."""
    whole: list[float]
    """Probability that all are accepted."""
    gain: list[float]
    """Tokens expected on top of the one that a plain step gives."""


class RoundPlan(NamedTuple):
    width: int
    """Tokens a row of the forward."""
    drafting: Sequence[Promise]
    """The rows that draft, as deep as they can within the width."""
    tokens: float
    """What the rows gain, one each in a plain step: their number times the harmonic mean of the tokens they expect."""
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second of all rows, if each took their mean time for a token."""
        return self.tokens / self.seconds

    def drafts(self) -> dict[int, int]:
        """By place of the outlook; those left out draft nothing."""
        return {promise.place: min(promise.bound, self.width - 1) for promise in self.drafting}


def plan_round(
    width: int, promises: Sequence[Promise], rows: int, forward: float, costs: DraftCost | None, plain: float
) -> RoundPlan:
    """The fastest round with a forward of `rows` rows and `width` tokens each, which takes `forward` seconds.

    No order is for more than the width. Of the rows without one, those draft that make it faster: a copy costs nothing
    once the width is paid, but a model's draft takes time, and one row that is refused may cost all a replay.
    `costs` is None where drafts cost nothing beside the forward; `plain`: seconds of a plain step.
    """
    depth = width - 1
    if not depth or costs is None:
        return RoundPlan(width, promises, _progress(rows, [promise.gain[depth] for promise in promises]), forward)
    order = sorted(
        promises,
        key=lambda promise: (not promise.ordered, costs.each(promise.method, plain), -promise.gain[depth]),
    )
    best = RoundPlan(width, (), rows, forward)
    longest: dict[Method, int] = {}
    gains: list[float] = []
    whole = 1.0
    for count, promise in enumerate(order, 1):
        longest[promise.method] = max(min(depth, promise.bound), longest.get(promise.method, 0))
        gains.append(promise.gain[depth])
        whole *= promise.whole[depth]
        tokens = _progress(rows, gains)
        seconds = forward + costs.seconds(longest, plain) + (1 - whole) * costs.replay
        if promise.ordered or tokens / seconds >= best.rate:
            best = RoundPlan(width, order[:count], tokens, seconds)
    return best


def _progress(rows: int, gains: Sequence[float]) -> float:
    """Of `rows` rows, some of which expect so many tokens on top of the one that each gets."""
    return rows * rows / (rows - sum([gain / (1 + gain) for gain in gains]))

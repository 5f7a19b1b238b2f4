"""One round as it might be: a width, who drafts in it, the tokens that are expected of it, and its seconds."""

from collections.abc import Sequence
from typing import NamedTuple

from pomona.workers.messages import Method
from pomona.workers.speculation.draft_cost import DraftCost


class Promise(NamedTuple):
    """What one row's drafts promise; entry i of the lists is of i drafts."""

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
    drafts: dict[int, int]
    """By place of the outlook; those left out draft nothing."""
    tokens: float
    seconds: float

    @property
    def width(self) -> int:
        return 1 + max(self.drafts.values(), default=0)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def plan_round(
    width: int, promises: Sequence[Promise], rows: int, forward: float, drafting: DraftCost, plain: float
) -> RoundPlan:
    """The fastest round with a forward of `rows` rows and `width` tokens each, which takes `forward` seconds.

    Rows with orders draft as deep as these say, or deeper. Of the others, those join that make it faster: a copy costs
    nothing once the width is paid, but a model's draft takes time, and one row that is refused may cost all a replay.
    """
    depths = [max(promise.ordered, min(promise.bound, width - 1)) for promise in promises]
    order = sorted(
        (place for place, depth in enumerate(depths) if depth),
        key=lambda place: (
            not promises[place].ordered,
            drafting.each(promises[place].method, plain),
            -promises[place].gain[depths[place]],
        ),
    )
    best = RoundPlan({}, float(rows), forward)
    drafts: dict[int, int] = {}
    longest: dict[Method, int] = {}
    tokens, whole = float(rows), 1.0
    for place in order:
        promise, depth = promises[place], depths[place]
        drafts[promise.place] = depth
        longest[promise.method] = max(depth, longest.get(promise.method, 0))
        tokens += promise.gain[depth]
        whole *= promise.whole[depth]
        seconds = forward + drafting.seconds(longest, plain) + (1 - whole) * drafting.replay
        if promise.ordered or tokens / seconds >= best.rate:
            best = RoundPlan(dict(drafts), tokens, seconds)
    return best

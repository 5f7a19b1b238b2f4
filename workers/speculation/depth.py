"""How many tokens each row drafts in the next round: what measured cost and measured acceptance say is fastest."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from pomona.config import DEEPEST, Method
from pomona.workers.messages import RequestId
from pomona.workers.speculation.acceptance import Acceptance, Outcome, Strength
from pomona.workers.speculation.draft_cost import DraftCost
from pomona.workers.speculation.ledger import Ledger
from pomona.workers.speculation.round_plan import Promise, RoundPlan, plan_round
from pomona.workers.speculation.verify_cost import VerifyCost

DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, DEEPEST)
"""Drafts a row; few enough that each width is soon measured, and compiled where kernels are."""
MARGIN = 1.03
"""Times as many tokens per second as plain decoding, from which on drafting is worth its round."""
HOPE_EVERY = 4
"""Steps between two looks for something to probe."""
PROBE_SHARE = 0.01
"""Of all time, that probes may be expected to cost."""
SAVED_UP = 8.0
"""Plain steps' worth of probes that may be saved up."""
FIRST = 2.0
"""Plain steps that the first forward of a shape is thought to have lost at most: it may have compiled."""
LEAST_PROBE = 0.05
"""Plain steps that a probe is thought to cost at least."""


class Outlook(NamedTuple):
    """What one row could draft now, by one method."""

    key: RequestId
    method: Method
    available: int
    """Drafts at hand or obtainable, the row's own bounds being in it; may be 0."""
    requested: int | None = None
    """The depth that the client gave: a bound, and with `named` an order, of `DEEPEST` at most."""
    strength: Strength = 0
    """Tokens of the match that an n-gram draft continues; of each of a grammar's drafts, what it stands on; else 0."""
    named: bool = False
    """The client named this method, which is not `auto`."""

    @property
    def bound(self) -> int:
        return max(0, min(self.available, DEEPEST, DEEPEST if self.requested is None else self.requested))

    @property
    def ordered(self) -> int:
        return self.bound if self.named and self.requested is not None else 0


class _Probe(NamedTuple):
    width: int
    cost: float


class DepthPolicy:
    """Chooses one width for the forward of all rows, that with the least expected time per token of a row on average.

    A function of what it was told: no clock, no random number, no look at a drafted token. Depths are decided before
    any draft is sampled, as exactness asks: a draft that was seen may not be dropped for what it is.

    - A client that names a method and a depth has ordered it: its row drafts so deep whenever it can, whatever it
      costs. A method alone, a depth alone, or neither, leaves it to what is measured, within the depth.
    - What is not ordered is drafted only if it promises `MARGIN` over plain decoding, and while the ledger affords
      it: whatever the estimates say, drafting costs no more than its share of time against plain decoding.
    - A width that might be faster than it is thought to be is probed now and then, within a share of time. What is
      known fades, so nothing stays unprobed for ever.

    Sources: expected value over measured times with only tested positions counted, as MTPLX's depth policies have it;
    hopes and doubts that shrink with evidence, as upper confidence bounds do (Auer et al., 2002).
    """

    def __init__(self, probe_share: float = PROBE_SHARE) -> None:
        self._probe_share = probe_share
        self._cost = VerifyCost()
        self._drafting = DraftCost()
        self._acceptance = Acceptance()
        self._ledger = Ledger()
        self._steps = 0
        self._saved = 0.0
        """Seconds of probes that may be spent."""
        self._worth = 0.0
        """Seconds of plain decoding for one token, with as many rows as ran last; 0 before any step."""
        self._strengths: dict[RequestId, Strength] = {}
        # Of the round that was chosen last:
        self._floor = 1
        """Width that orders ask for."""
        self._ordered: frozenset[RequestId] = frozenset()
        self._probe: _Probe | None = None

    # what was seen

    def verified(self, rows: int, width: int, seconds: float, replay: float = 0.0) -> None:
        """One step of `rows` rows with `width` tokens each (1: a plain one) took `seconds`, from launch to its tokens.

        `replay`: of these, what it took to make good what was refused, for caches that cannot just forget it.
        """
        if rows < 1 or seconds <= replay:
            return
        self._steps += 1
        known = self._cost.known(rows, width)
        self._cost.observe(rows, width, seconds - replay)
        self._drafting.replayed(replay)
        plain = self._cost.seconds(rows, 1)
        self._ledger.passed(seconds, plain)
        self._saved = min(self._saved + self._probe_share * seconds, SAVED_UP * plain)
        if width > self._floor:
            lost = seconds - self._cost.seconds(rows, self._floor)
            self._ledger.lost(lost if known else min(lost, FIRST * plain))
        self._worth = plain / rows
        if self._probe is not None and self._probe.width == width:
            self._saved -= self._probe.cost
            self._probe = None

    def waited(self, rows: int, seconds: float) -> None:
        """One plain step of `rows` rows took `seconds`, since it was launched only when the last tokens were known.

        Drafting brought that about, so what it took beyond a plain step that waits for nothing is drafting's loss.
        """
        if not self._cost.known(rows, 1):
            self.verified(rows, 1, seconds)
            return
        self._steps += 1
        plain = self._cost.seconds(rows, 1)
        self._ledger.passed(seconds, plain)
        self._ledger.lost(max(0.0, seconds - plain))
        self._worth = plain / rows

    def calibrated(self, rows: int, width: int, seconds: float) -> None:
        """A forward that served nobody took `seconds`: what is known of costs before the first request."""
        self._cost.observe(rows, width, seconds)
        plain = self._cost.seconds(rows, 1)
        self._ledger.passed(0.0, plain)
        self._worth = plain / rows

    def looked(self, seconds: float) -> None:
        """To see whether anybody could draft took `seconds`, which a worker without drafts would not have spent."""
        self._ledger.lost(seconds)

    def proposed(self, method: Method, drafts: int, seconds: float) -> None:
        """One call for proposals took `seconds`; the longest that it gave has `drafts` tokens."""
        self._drafting.proposed(method, drafts, seconds)
        if self._floor == 1:
            self._ledger.lost(seconds)

    def tested(
        self, key: RequestId, method: Method, drafted: int, accepted: int, strength: Strength | None = None
    ) -> None:
        """Of a row's `drafted` drafts the first `accepted` were accepted; drafts behind a row's end do not count.

        `strength`: of the drafts, if they are not those of the row's outlook.
        """
        own = self._strengths.get(key, 0) if strength is None else strength
        self._acceptance.note(key, Outcome(method, own, drafted, accepted), self._steps)
        if key not in self._ordered:
            self._ledger.won(accepted * self._worth)

    def forget(self, key: RequestId) -> None:
        """The request has left; legal for one that never drafted."""
        self._acceptance.forget(key)
        self._strengths.pop(key, None)

    # what is to be done

    def affords_any(self, rows: int) -> bool:
        """Whether a round of `rows` rows can come out in which somebody drafts, be it without an order."""
        if not self._worth:
            return False
        cheapest = min(self._cost.seconds(rows, 1 + depth) for depth in DEPTHS)
        return self._ledger.affords(cheapest - self._cost.seconds(rows, 1))

    def choose(self, outlooks: Sequence[Outlook], rows: int) -> list[int]:
        """Drafts of each outlook's row, in order, in the next forward of `rows` rows; one outlook a row at most.

        Asking twice is as asking once: what is told next is of the round that was chosen last. Before any step was
        measured nothing is drafted but what is ordered.
        """
        self._floor = 1 + max((outlook.ordered for outlook in outlooks), default=0)
        self._ordered = frozenset(outlook.key for outlook in outlooks if outlook.ordered)
        self._probe = None
        able = [(index, outlook) for index, outlook in enumerate(outlooks) if outlook.bound]
        if not able:
            return [0] * len(outlooks)
        self._strengths.update((outlook.key, outlook.strength) for _, outlook in able)
        drafts = self._plan(able, rows).drafts()
        return [drafts.get(index, 0) for index in range(len(outlooks))]

    def prefer(self, options: Sequence[Outlook], rows: int) -> int:
        """Index of the fastest of one row's methods, as if all rows were like it; the first of equals.

        Whether it pays is for `choose` to say. Raises ValueError if there is none.
        """
        if not options:
            raise ValueError("there is no method to choose from")
        return max(range(len(options)), key=lambda index: self._alone(options[index], rows))

    def _alone(self, option: Outlook, rows: int) -> float:
        """Tokens per second of a batch in which every row has this outlook."""
        plain, each = self._cost.seconds(rows, 1), self._drafting.each(option.method, self._cost.seconds(rows, 1))
        gain = self._promise(0, option).gain
        return max(
            rows * (1 + gain[drafts]) / (self._cost.seconds(rows, 1 + drafts) + drafts * each if drafts else plain)
            for drafts in range(option.bound + 1)
        )

    def _plan(self, able: Sequence[tuple[int, Outlook]], rows: int) -> RoundPlan:
        plain = self._cost.seconds(rows, 1)
        promises = [self._promise(index, outlook) for index, outlook in able]
        costs = self._costs(promises, plain)

        def planned(width: int) -> RoundPlan:
            return plan_round(width, promises, rows, self._cost.seconds(rows, width), costs, plain)

        floor = planned(self._floor)
        if not self._worth:
            return floor
        deepest = max(promise.bound for promise in promises)
        plans = [planned(1 + depth) for depth in DEPTHS if self._floor <= depth < deepest]
        if deepest >= self._floor:
            plans.append(planned(1 + deepest))
        plans = [floor, *(plan for plan in plans if self._ledger.affords(plan.seconds - floor.seconds))]
        best = max(plans, key=lambda plan: plan.rate)
        if best.rate < MARGIN * floor.rate:
            best = floor
        if self._steps % HOPE_EVERY == 0 and self._saved >= LEAST_PROBE * plain:
            return self._hopeful(able, rows, plans, best) or best
        return best

    def _hopeful(
        self, able: Sequence[tuple[int, Outlook]], rows: int, plans: Sequence[RoundPlan], best: RoundPlan
    ) -> RoundPlan | None:
        """The round that may turn out the fastest, if it is another and what it is thought to cost is saved up."""
        plain = self._cost.seconds(rows, 1)
        promises = [self._promise(index, outlook, hopeful=True) for index, outlook in able]
        costs = self._costs(promises, plain)
        hoped = [
            plan_round(plan.width, promises, rows, self._cost.least_seconds(rows, plan.width), costs, plain)
            for plan in plans
        ]
        place = max(range(len(hoped)), key=lambda place: hoped[place].rate)
        plan = plans[place]
        cost = max(LEAST_PROBE * plain, plan.seconds - plan.tokens / best.rate)
        if plan is best or hoped[place].rate < MARGIN * best.rate or cost > self._saved:
            return None
        self._probe = _Probe(plan.width, cost)
        return hoped[place]

    def _costs(self, promises: Sequence[Promise], plain: float) -> DraftCost | None:
        """What drafts cost beside the forward, if they do."""
        return None if self._drafting.none({promise.method for promise in promises}, plain) else self._drafting

    def _promise(self, index: int, outlook: Outlook, *, hopeful: bool = False) -> Promise:
        key, method, bound = outlook.key, outlook.method, outlook.bound
        hope = self._acceptance.hope(key, method, self._steps) if hopeful else 0.0
        chances = self._acceptance.chances(key, method, outlook.strength, bound, self._steps)
        whole = [1.0, *accumulate((chance + (1 - chance) * hope for chance in chances), mul)]
        gain = [tokens - 1 for tokens in accumulate(whole)]
        whole += whole[-1:] * (DEEPEST - bound)
        gain += gain[-1:] * (DEEPEST - bound)
        return Promise(index, method, bound, outlook.ordered, whole, gain)

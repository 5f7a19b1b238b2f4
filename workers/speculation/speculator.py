"""The drafts of one worker: who proposes, how many are worth it, and what became of them."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from pomona.config import DEEPEST, Method
from pomona.runtime.mailbox import now
from pomona.runtime.wire import replace
from pomona.workers.batch import Batch
from pomona.workers.messages import MethodFigures, RequestId
from pomona.workers.row import Row
from pomona.workers.sampling.law import Drafted, RowLaw
from pomona.workers.speculation.acceptance import Strength
from pomona.workers.speculation.depth import DepthPolicy, Outlook
from pomona.workers.speculation.grammar import Draft, GrammarProposer, forced
from pomona.workers.speculation.ngram import NgramProposer
from pomona.workers.speculation.proposal import Ask, Listener, Proposal, Proposer

SMOOTHED = 4
"""Plain steps in a row whose times are told as their mean."""


class Drafts(NamedTuple):
    """What the rows of a batch draft in one step; entry i is of row i."""

    proposals: list[Proposal]

    @property
    def tokens(self) -> list[tuple[int, ...]]:
        return [proposal.tokens for proposal in self.proposals]

    def laws(self, rows: Sequence[Row]) -> tuple[list[RowLaw], mx.array | None]:
        """How each position's token is drawn, row by row, and the distributions that drafts were drawn from."""
        laws: list[RowLaw] = []
        distributions: list[mx.array] = []
        held = 0
        for row, (tokens, own) in zip(rows, self.proposals, strict=True):
            laws_of_row = row.laws(tokens)
            if own is not None:
                distributions.append(own)
                for index, token in enumerate(tokens):
                    laws_of_row[index] = laws_of_row[index]._replace(drafted=Drafted(token, held + index))
                held += len(tokens)
            laws += laws_of_row
        return laws, mx.concatenate(distributions) if distributions else None


class Speculator:
    """Asks the proposers for what the depth policy finds worth it, and tells the policy what came of it."""

    def __init__(self, proposers: Sequence[Proposer] = ()) -> None:
        """`proposers` in order of preference, where two are equally good; one of each method at most."""
        self._proposers = {proposer.method: proposer for proposer in proposers}
        self._listeners = [proposer for proposer in proposers if isinstance(proposer, Listener)]
        self._policy = DepthPolicy()
        self._plain: deque[tuple[int, float]] = deque(maxlen=SMOOTHED)
        self._figures: dict[Method, MethodFigures] = {}
        self._asked: dict[RequestId, tuple[Method, Strength | None]] = {}
        """Whose drafts a row has, and their strength, if its outlook did not tell it."""
        self.due = False
        """The next step is worth waiting for the tokens of the last one, since some row may draft behind them."""

    def methods(self, batch: Batch) -> tuple[Method, ...]:
        """How the rows of a batch may draft; none where its model cannot verify drafts."""
        return tuple(self._proposers) if self._proposers and batch.max_drafts != 0 else ()

    def launched(self, batch: Batch, drafts: Sequence[Sequence[int]] | None) -> None:
        """The batch has just launched a forward, with these drafts or without any."""
        for listener in self._listeners:
            listener.launched(batch, drafts)

    @property
    def figures(self) -> dict[Method, MethodFigures]:
        """Since `reset`, by method."""
        return dict(self._figures)

    def reset(self) -> None:
        """Count anew; what was measured stays."""
        self._figures.clear()

    def look(self, batch: Batch, *, drawing: bool = False) -> None:
        """Say whether drafts are due, from the tokens that are committed.

        `drawing`: a forward of the next token is under way, behind which the drafts will be.
        """
        begin = now()
        self.due = any(depth for _, depth in self._depths(batch, drawing=drawing))
        self._policy.looked(now() - begin)

    def draft(self, batch: Batch) -> Drafts | None:
        """What the rows draft behind their last tokens, all of which are committed.

        None if nobody does, and then a plain forward is the next.
        """
        asks: dict[Method, list[tuple[int, Ask]]] = {}
        depths = self._depths(batch)
        self.due = any(depth for _, depth in depths)
        for (index, outlook), depth in depths:
            if depth:
                asks.setdefault(outlook.method, []).append((index, Ask(batch.rows[index], depth)))
        proposals = [Proposal() for _ in batch.rows]
        self._asked.clear()
        for method, own in asks.items():
            begin = now()
            given = self._proposers[method].propose(batch, [ask for _, ask in own])
            seconds = now() - begin
            self._policy.proposed(method, max(len(proposal.tokens) for proposal in given), seconds)
            known = self._figures.get(method, MethodFigures())
            self._figures[method] = replace(known, propose_seconds=known.propose_seconds + seconds)
            for (index, ask), proposal in zip(own, given, strict=True):
                held = _cut(proposal, ask.row.legal(proposal.tokens))
                surer = self._surer(ask, len(held.tokens))
                proposals[index] = surer or held
                times = None if surer is None else tuple(draft.times for draft in self._plan(ask.row))
                self._asked[ask.row.request.id] = (method, None) if surer is None else ("grammar", times)
        if any(proposal.tokens for proposal in proposals):
            return Drafts(proposals)
        self.look(batch, drawing=True)
        return None

    def _surer(self, ask: Ask, held: int) -> Proposal | None:
        """What a row's constraint forces, if that is more than the `held` drafts that it has."""
        if ask.row.request.speculation.method != "auto":
            return None
        plan = self._plan(ask.row)[: ask.depth]
        return Proposal(tuple(draft.token for draft in plan)) if forced(plan) > held else None

    def _plan(self, row: Row) -> tuple[Draft, ...]:
        grammar = self._proposers.get("grammar")
        return grammar.plan(row) if isinstance(grammar, GrammarProposer) else ()

    def _depths(self, batch: Batch, *, drawing: bool = False) -> list[tuple[tuple[int, Outlook], int]]:
        outlooks = self._outlooks(batch, drawing=drawing)
        depths = self._policy.choose([outlook for _, outlook in outlooks], len(batch.rows))
        return list(zip(outlooks, depths, strict=True))

    def _outlooks(self, batch: Batch, *, drawing: bool) -> list[tuple[int, Outlook]]:
        if not batch.rows or not self.methods(batch):
            return []
        if not (self._policy.affords_any(len(batch.rows)) or any(map(_orders, batch.rows))):
            return []
        most, found = batch.max_drafts, []
        for index, row in enumerate(batch.rows):
            options = self._options(row, min(row.remaining - 1, DEEPEST if most is None else most), drawing=drawing)
            if options:
                best = 0 if len(options) == 1 else self._policy.prefer(options, len(batch.rows))
                found.append((index, options[best]))
        return found

    def _options(self, row: Row, bound: int, *, drawing: bool) -> list[Outlook]:
        """What each method could do for a row that has room for `bound` drafts, once its next token is drawn or now."""
        wish = row.request.speculation
        if wish.method == "off" or bound <= 0 or row.finish is not None:
            return []
        options = []
        for method, proposer in self._proposers.items():
            if wish.method not in ("auto", method):
                continue
            available: int = bound
            strength: Strength = 0
            if isinstance(proposer, NgramProposer):
                strength = proposer.strength(row)
                available = bound if strength else 0
            elif isinstance(proposer, GrammarProposer):
                strength = tuple(draft.times for draft in proposer.plan(row))[drawing:]
                available = min(bound, len(strength))
            if available:
                options.append(
                    Outlook(row.request.id, method, available, wish.depth, strength, named=wish.method == method)
                )
        return options

    def forget_costs(self) -> None:
        """Measure anew what everything takes, and what is accepted."""
        self._policy = DepthPolicy()
        self._plain.clear()

    def calibrated(self, rows: int, width: int, seconds: float) -> None:
        """A forward that served nobody took so long."""
        self._policy.calibrated(rows, width, seconds)

    def ran(self, rows: int, width: int, seconds: float, *, waited: bool) -> None:
        """A decode step of `rows` rows with `width` tokens each took so long from the tokens before it to its own.

        `waited`: it was launched when those before it were known, as drafts ask. Of the other ones, which overlap with
        the host's work, the mean of the last ones is told: a token that is read late makes its own step longer and the
        next one shorter.
        """
        if width > 1 or waited:
            self._plain.clear()
            if width > 1:
                self._policy.verified(rows, width, seconds)
            else:
                self._policy.waited(rows, seconds)
            return
        if self._plain and self._plain[-1][0] != rows:
            self._plain.clear()
        self._plain.append((rows, seconds))
        self._policy.verified(rows, 1, sum(each for _, each in self._plain) / len(self._plain))

    def tested(self, row: Row, drafted: int, accepted: int) -> None:
        """Of the row's drafts of the last step `drafted` count, and the first `accepted` of them were accepted."""
        method, strength = self._asked.pop(row.request.id, (None, None))
        if method is None or not drafted:
            return
        self._policy.tested(row.request.id, method, drafted, accepted, strength)
        known = self._figures.get(method, MethodFigures())
        tested = min(drafted, accepted + 1)
        self._figures[method] = replace(
            known,
            tested=_counted(known.tested, tested),
            accepted=_counted(known.accepted, accepted),
            unused=known.unused + drafted - tested,
        )

    def forget(self, request: RequestId) -> None:
        """The request has left the batch."""
        self._policy.forget(request)
        self._asked.pop(request, None)
        for proposer in self._proposers.values():
            proposer.forget(request)


def _orders(row: Row) -> bool:
    """Its client said how to draft and how deep, whatever that costs."""
    wish = row.request.speculation
    return wish.method not in ("auto", "off") and wish.depth is not None


def _cut(proposal: Proposal, length: int) -> Proposal:
    if length == len(proposal.tokens):
        return proposal
    own = proposal.distributions
    return Proposal(proposal.tokens[:length], None if own is None or not length else own[:length])


def _counted(counts: tuple[int, ...], reached: int) -> tuple[int, ...]:
    """One more at each depth up to `reached`."""
    longer = (*counts, *[0] * (reached - len(counts)))
    return tuple(count + (depth < reached) for depth, count in enumerate(longer))

"""Drafts copied from what the row's own prompt and answer hold: what followed where its last tokens stood before."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pomona.config import Method
from pomona.workers.messages import RequestId
from pomona.workers.speculation.proposal import Ask, Proposal
from pomona.workers.speculation.suffix_index import SHORTEST, Match, SuffixIndex

if TYPE_CHECKING:
    from pomona.workers.batch import Batch
    from pomona.workers.row import Row

WINDOW = 65_536
"""Tokens before the answer that are indexed; of a longer prompt its end."""
AT_ONCE = 32_768
"""Tokens indexed in one call, so that the long prompt of one row never keeps the others waiting for long."""


class _Indexed:
    """What is known of one row."""

    def __init__(self, row: "Row") -> None:
        self.row = row
        self.index = SuffixIndex()
        self._begin = max(0, len(row.request.prompt) - WINDOW)
        self._newest = -1

    @property
    def _seen(self) -> int:
        return self._begin + len(self.index)

    def still_of(self, row: "Row") -> bool:
        """Whether the row only grew since; a resumed request has a row of its own."""
        if row is not self.row or _count(row) < self._seen:
            return False
        return not len(self.index) or _part(row, self._seen - 1, self._seen)[0] == self._newest

    def catch_up(self) -> bool:
        """Index what is new, `AT_ONCE` tokens of it at most; True if that was all."""
        count = _count(self.row)
        fresh = _part(self.row, self._seen, min(count, self._seen + AT_ONCE))
        if fresh:
            self._newest = fresh[-1]
            self.index.extend(fresh)
        return self._seen == count


class NgramProposer:
    """Proposes what followed the longest match of a row's end, in point masses (the proposer of method `ngram`).

    It has no cost to speak of: microseconds a row where nothing matches, and no forward. Memory is about 170 bytes for
    each token of the running rows.
    """

    def __init__(self, shortest: int = SHORTEST) -> None:
        """`shortest`: tokens that must match, 2 or more; shorter matches cost more than they give."""
        if shortest < SHORTEST:
            raise ValueError(f"an n-gram match has {SHORTEST} tokens or more, not {shortest}")
        self._shortest = shortest
        self._rows: dict[RequestId, _Indexed] = {}

    @property
    def method(self) -> Method:
        return "ngram"

    def strength(self, row: "Row") -> int:
        """Tokens of the match that a proposal for this row would continue now; 0 if there would be none.

        Asking changes no later answer. A match can be continued by any number of tokens, as it runs on into itself.
        """
        match = self._match(row)
        return 0 if match is None else match.length

    def propose(self, batch: "Batch | None", asks: Sequence[Ask]) -> list[Proposal]:
        """The batch is not looked at."""
        return [self._continue(ask) for ask in asks]

    def _continue(self, ask: Ask) -> Proposal:
        match = self._match(ask.row)
        if match is None:
            return Proposal()
        return Proposal(self._rows[ask.row.request.id].index.continuation(match, ask.depth))

    def forget(self, request: RequestId) -> None:
        self._rows.pop(request, None)

    def _match(self, row: "Row") -> Match | None:
        known = self._rows.get(row.request.id)
        if known is None or not known.still_of(row):
            known = self._rows[row.request.id] = _Indexed(row)
        match = known.index.match() if known.catch_up() else None
        return match if match is not None and match.length >= self._shortest else None


def _count(row: "Row") -> int:
    """Prompt and committed tokens. They are looked at where they lie: `row.tokens` is a copy of them all."""
    return len(row.request.prompt) + len(row.committed)


def _part(row: "Row", start: int, stop: int) -> list[int]:
    prompt = row.request.prompt
    behind = len(prompt)
    if start >= behind:
        return row.committed[start - behind : stop - behind]
    return [*prompt[start:stop], *row.committed[: max(0, stop - behind)]]

"""Drafts where a row's constraint leaves one way: all are accepted, so that one forward commits the whole stretch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pomona.config import DEEPEST, Method
from pomona.workers.messages import RequestId
from pomona.workers.speculation.proposal import Ask, Proposal

if TYPE_CHECKING:
    from pomona.workers.batch import Batch
    from pomona.workers.row import Row

LONGEST = 4 * DEEPEST
"""Tokens of a stretch that are asked for at once; what is left of it after a round is not asked for again."""


class _Followed:
    """What is known of one row."""

    def __init__(self, row: "Row") -> None:
        self.row = row
        self.stretch: tuple[int, ...] = ()
        self._at = -1
        """Committed tokens, behind which the stretch begins."""
        self._heralds: dict[int, int] = {}
        """By token: how long the stretch was that began behind the token after it, when it was last written."""

    def catch_up(self) -> None:
        committed = self.row.committed
        count = len(committed)
        if count == self._at:
            return
        left = self._left(count)
        self.stretch = left or self.row.forced(LONGEST)
        self._at = count
        if count > 1 and not left:
            if self.stretch:
                self._heralds[committed[-2]] = len(self.stretch)
            else:
                self._heralds.pop(committed[-2], None)

    def _left(self, count: int) -> tuple[int, ...]:
        """What is left of the stretch that was known, if the row went along it."""
        grown = count - self._at
        if self._at < 0 or not 0 < grown < len(self.stretch):
            return ()
        return self.stretch[grown:] if tuple(self.row.committed[self._at :]) == self.stretch[:grown] else ()

    def expected(self) -> int:
        last = self.row.last_token
        return len(self.stretch) - 1 if self.stretch else self._heralds.get(last, 0)


class GrammarProposer:
    """Proposes the tokens that a row's constraint forces, in point masses (the proposer of method `grammar`).

    Rows without a constraint have no such tokens, and cost nothing. For the others a look is some microseconds where
    nothing is forced, a few hundred where a stretch begins, and next to none along it.
    """

    def __init__(self) -> None:
        self._rows: dict[RequestId, _Followed] = {}

    @property
    def method(self) -> Method:
        return "grammar"

    def stretch(self, row: "Row") -> tuple[int, ...]:
        """The tokens that are forced behind the row's last one, as many as are seen; asking changes no later answer."""
        followed = self._follow(row)
        return () if followed is None else followed.stretch

    def expected(self, row: "Row") -> int:
        """How many tokens will be forced behind the row's next one.

        What is forced now tells. Else it is a guess: what was forced so far behind, when the last token was written
        before, since JSON has the same few tokens in front of its keys.
        """
        followed = self._follow(row)
        return 0 if followed is None else followed.expected()

    def propose(self, batch: "Batch | None", asks: Sequence[Ask]) -> list[Proposal]:
        """The batch is not looked at."""
        return [Proposal(self.stretch(ask.row)[: ask.depth]) for ask in asks]

    def forget(self, request: RequestId) -> None:
        self._rows.pop(request, None)

    def _follow(self, row: "Row") -> _Followed | None:
        if not row.wants_guide:
            return None
        followed = self._rows.get(row.request.id)
        if followed is None or followed.row is not row:
            followed = self._rows[row.request.id] = _Followed(row)
        followed.catch_up()
        return followed

"""Drafts where a row's constraint leaves one way: they are accepted, so that one forward commits the whole stretch.

Free blanks keep stretches apart: in JSON all of a key may be forced, but not how many blanks stand in front of it. So
what a row wrote between two stretches, when it last stood where it stands, is guessed, and the drafts go on behind it.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pomona.config import DEEPEST, Method
from pomona.workers.constraint.error import ConstraintError
from pomona.workers.messages import RequestId
from pomona.workers.speculation.proposal import Ask, Proposal

if TYPE_CHECKING:
    from pomona.workers.batch import Batch
    from pomona.workers.row import Row

GUESSED = 4
"""Tokens between two stretches, at most."""
OFTEN = 3
"""Times in a row that the same came next, from which on it makes no difference."""


class Draft(NamedTuple):
    token: int
    times: int
    """0: it is forced. Else it is guessed, and came next so many times in a row, `OFTEN` at most."""


class _Left(NamedTuple):
    """What a row has just written."""

    token: int
    stretch: bool
    """A stretch stands behind the token, whose own tokens do not matter."""


class _Followed:
    """What is known of one row."""

    def __init__(self, row: "Row") -> None:
        self.row = row
        self.plan: tuple[Draft, ...] = ()
        """What is to come behind `_at` committed tokens."""
        self._at: int | None = None
        self._behind = _Left(row.request.prompt[-1], stretch=False)
        self._next: dict[_Left, Draft] = {}
        """What came behind it last."""

    def catch_up(self) -> None:
        fresh = self.row.committed[self._at or 0 :]
        if self._at is not None and not fresh:
            return
        on_plan = 0
        for index, token in enumerate(fresh):
            forced = False
            if on_plan == index < len(self.plan) and self.plan[index].token == token:
                forced = not self.plan[index].times
                on_plan += 1
            if not forced:
                self._learn(token)
            self._behind = self._behind._replace(stretch=True) if forced else _Left(token, stretch=False)
        self._at = len(self.row.committed)
        left = self.plan[on_plan:] if on_plan == len(fresh) else ()
        if left and not left[0].times:
            self.plan = left  # in the midst of a stretch: what is forced stays so
        else:
            self._look()

    def _learn(self, token: int) -> None:
        known = self._next.get(self._behind)
        times = known.times + 1 if known is not None and known.token == token else 1
        self._next[self._behind] = Draft(token, min(times, OFTEN))

    def _look(self) -> None:
        plan = tuple(self._ahead())
        self.plan = plan if any(not draft.times for draft in plan) else ()

    def _ahead(self) -> Iterator[Draft]:
        """Forced tokens, and guesses between them, `DEEPEST` at most; what the constraint refuses ends them."""
        ahead, behind, guesses = self.row.foresee(), self._behind, 0
        left = DEEPEST
        try:
            while ahead is not None and left and not ahead.over:
                forced = ahead.forced(left)
                for token in forced:
                    ahead.commit(token)
                    yield Draft(token, 0)
                left -= len(forced)
                if forced:
                    behind, guesses = behind._replace(stretch=True), 0
                guess = self._next.get(behind)
                if not left or ahead.over or guess is None or guesses == GUESSED:
                    return
                ahead.commit(guess.token)
                yield guess
                left, guesses, behind = left - 1, guesses + 1, _Left(guess.token, stretch=False)
        except ConstraintError:
            return  # whatever it is, it is met again where the row's own masks are made


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

    def plan(self, row: "Row") -> tuple[Draft, ...]:
        """What is to come behind the row's last token, `DEEPEST` tokens at most; empty if none of them is forced.

        Asking changes no later answer.
        """
        if not row.wants_guide:
            return ()
        followed = self._rows.get(row.request.id)
        if followed is None or followed.row is not row:
            followed = self._rows[row.request.id] = _Followed(row)
        followed.catch_up()
        return followed.plan

    def propose(self, batch: "Batch | None", asks: Sequence[Ask]) -> list[Proposal]:
        """The batch is not looked at."""
        return [Proposal(tuple(draft.token for draft in self.plan(ask.row)[: ask.depth])) for ask in asks]

    def forget(self, request: RequestId) -> None:
        self._rows.pop(request, None)


def forced(plan: Sequence[Draft]) -> int:
    """How many drafts, from the first on, are forced."""
    return next((place for place, draft in enumerate(plan) if draft.times), len(plan))

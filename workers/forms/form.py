"""What the batch asks of one layer's cache, whatever its kind."""

from collections.abc import Sequence
from typing import Any, Protocol


class Form(Protocol):
    """One layer's cache for all rows; row i of every layer belongs to row i of the batch.

    All forms of a batch share one `SlotLengths`, which says how many tokens each row holds. The caller keeps it: it
    counts a row after it has joined everywhere, and puts the lengths in a new order after `keep`.

    A forward that verifies drafts is bracketed by `hold` and `settle`; rows may join, leave and be extracted between
    the two, and count what they held before.
    """

    @property
    def as_cache(self) -> Any:
        """What the model gets as this layer's cache in the next forward."""
        ...

    @property
    def nbytes(self) -> int: ...

    @property
    def refusal(self) -> str:
        """Why drafts cannot be verified over it; empty if they can."""
        ...

    @property
    def is_state(self) -> bool:
        """True if no token can be cut out of what it holds: a row that keeps a part of what it fed goes back to what
        it held before, and feeds that part again."""
        ...

    @property
    def overwrites(self) -> bool:
        """True if what a forward wrote behind a row's length needs no undoing: the next one writes over it."""
        ...

    @property
    def widest(self) -> int | None:
        """Tokens that one forward that verifies may feed; None where there is no bound."""
        ...

    def join(self, single: Any) -> None:
        """Copy one row's cache of mlx-lm behind the last row that is not apart; it is not written to."""
        ...

    def keep(self, rows: list[int]) -> None:
        """Row i becomes what row `rows[i]` was; rows that are not named are free."""
        ...

    def extract(self, index: int) -> Any:
        """One row as mlx-lm's own cache, in the state that it would have alone."""
        ...

    def hold(self) -> None:
        """Remember what is needed to go back behind the next forward."""
        ...

    def settle(self, whole: Sequence[bool]) -> None:
        """The lengths say what rows keep: all that they fed where `whole`, else a part, or nothing of it if state."""
        ...

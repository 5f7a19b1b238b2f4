"""What a proposer is: it guesses a row's next tokens, and whatever it guesses, the output's law stays the same."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from pomona.config import Method
from pomona.workers.messages import RequestId

if TYPE_CHECKING:
    import mlx.core as mx

    from pomona.workers.batch import Batch
    from pomona.workers.row import Row


class Proposal(NamedTuple):
    """Drafted tokens, which may be fewer than were asked for, and what each was drawn from."""

    tokens: tuple[int, ...] = ()
    distributions: "mx.array | None" = None
    """float32 [len(tokens), vocabulary], each sums to 1; None where every token is a point mass."""


class Ask(NamedTuple):
    """One row wants drafts behind its last token, which no forward has taken yet."""

    row: "Row"
    depth: int
    """Drafts at most, 1 or more."""


class Proposer(Protocol):
    """Guesses for the rows of one batch. It keeps state for requests by their id, and can always rebuild it.

    A row's tokens may have grown by any number since the last call, and its drafts may have been refused in part:
    a proposer compares what it knows with the row's tokens. What it is not ready to guess it leaves out.
    """

    @property
    def method(self) -> Method: ...

    def propose(self, batch: "Batch", asks: Sequence[Ask]) -> list[Proposal]:
        """A proposal for each ask, in order; empty ones where there is no guess."""
        ...

    def forget(self, request: RequestId) -> None:
        """The request has left; legal for one that it never saw."""
        ...


@runtime_checkable
class Listener(Protocol):
    """A proposer that follows the batch's forwards."""

    def launched(self, batch: "Batch", drafts: Sequence[Sequence[int]] | None = None) -> None:
        """The batch has just launched `forward()`, or `verify(drafts)`; called before any other forward."""
        ...

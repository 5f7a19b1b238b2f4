"""One request inside the scheduler, as an explicit state machine."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from pomona.runtime.mailbox import Peer
from pomona.scheduler.refusal import Refusal
from pomona.workers.messages import Request, RequestId


class Phase(Enum):
    WAITING = "waiting"
    """Queued; no worker holds it."""
    RUNNING = "running"
    """A worker holds it; its events are delivered."""
    CANCELLING = "cancelling"
    """A worker holds it and was told to drop it; its events are not delivered."""
    ENDED = "ended"
    """Forgotten; nothing holds it."""


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.RUNNING, Phase.ENDED}),
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.CANCELLING, Phase.ENDED}),
    Phase.CANCELLING: frozenset({Phase.WAITING, Phase.ENDED}),
    Phase.ENDED: frozenset(),
}
"""The legal moves. RUNNING to WAITING is a resume; CANCELLING to WAITING a new run after an old one was dropped."""

Afterwards = Literal["acknowledge", "silence", "again", "refuse"]
"""What follows a drop: tell the gateway, tell nobody (it is gone), run again, or tell the gateway why it may not."""


class IllegalMove(RuntimeError):
    """A bug of the scheduler: the request cannot go from one phase to the other."""


@dataclass(slots=True, eq=False)
class Job:
    request: Request
    gateway: Peer
    order: int
    """Rises with each admission: the age of the request."""
    waiting_since: float
    committed: list[int] = field(default_factory=list)
    """Output tokens that went to the gateway, and those that the request came with."""
    phase: Phase = Phase.WAITING
    worker: Peer | None = None
    """Who holds it: set in RUNNING and CANCELLING, and only there."""
    afterwards: Afterwards = "acknowledge"
    cancelled_at: float = 0.0
    resumes: int = 0
    """Runs that ended without its doing."""
    first: bool = False
    """It ran before and lost its worker, so it goes ahead of those that did not."""
    admitted: float = 0.0
    kv_bytes: int = 0
    """Reserved in the worker that holds it."""
    overtaken: int = 0
    """Requests that were dispatched before it since it waits, though its turn came first: its KV found no room."""
    charged: bool = False
    """Its client has paid for its prompt."""
    preempted: bool = False
    """It is being dropped for a more urgent one."""
    refusal: Refusal | None = None
    """Why it ends, where `afterwards` is `refuse`."""

    @property
    def ending(self) -> bool:
        """It was told to stop and will not run again."""
        return self.phase is Phase.CANCELLING and self.afterwards != "again"

    @property
    def id(self) -> RequestId:
        return self.request.id

    def move(self, phase: Phase) -> None:
        """Raises IllegalMove where `MOVES` does not list it."""
        if phase not in MOVES[self.phase]:
            raise IllegalMove(f"request {self.id} cannot go from {self.phase.value} to {phase.value}")
        self.phase = phase

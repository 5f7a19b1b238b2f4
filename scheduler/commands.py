"""What the plan may say."""

from dataclasses import dataclass

from pomona.runtime.mailbox import Peer
from pomona.scheduler.refusal import Refusal
from pomona.workers.messages import RequestId


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Assign the request to the worker."""

    id: RequestId
    worker: Peer
    passed: tuple[RequestId, ...] = ()
    """Requests whose turn came before and for whose KV there was no room: this one overtakes them."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the waiting request."""

    id: RequestId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Preempt:
    """Take the running request from its worker, for a more urgent one; it waits again with the tokens that it has."""

    id: RequestId


@dataclass(frozen=True, slots=True)
class Expire:
    """End the request that a worker holds: its client is told once the worker has dropped it."""

    id: RequestId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Condemn:
    """Have the worker killed; what it held runs again."""

    worker: Peer
    reason: str


Command = Dispatch | Refuse | Preempt | Expire | Condemn

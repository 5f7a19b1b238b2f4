"""What a gateway and the scheduler say to each other."""

from typing import Literal

from pomona.config import Method
from pomona.runtime.tally import Tally, empty
from pomona.runtime.wire import Message, Part
from pomona.workers.messages import Request, RequestId, TokenEvent, WorkerStats

RefusalKind = Literal[
    "unknown_model",
    "context_length",
    "queue_full",
    "waited_too_long",
    "unavailable",
    "poison",
    "prompt_length",
    "kv_memory",
    "client_limit",
    "timed_out",
]

# gateway -> scheduler


class GatewayHello(Message):
    """First word on a new link: the scheduler answers with `Models`."""


class Submit(Message):
    """Run this request; a resumed one carries its committed tokens. Answered by events or one `Refused`.

    An id that is still held is superseded: the former run ends first, without a word.
    """

    request: Request
    resumed: bool = False
    """It was submitted before, to a former scheduler maybe: the bound of the queue does not apply again."""


class CancelRequest(Message):
    """Stop it now, whatever its state; idempotent. Answered by `Cancelled`."""

    id: RequestId


class AskStats(Message):
    """Answered by `Stats` with the same `ticket`."""

    ticket: int


# scheduler -> gateway


class ModelState(Part, kw_only=True):
    """A model that can be asked for. `context` is 0 until one of its workers was ready once."""

    id: str
    state: Literal["loading", "ready", "failed"]
    context: int = 0
    workers: int = 0
    """Ready workers."""
    detail: str = ""
    methods: tuple[Method, ...] | None = None
    """Of speculation, that its workers have; None until one of them was ready once."""


class Models(Message):
    """Sent at HELLO and at each change."""

    models: tuple[ModelState, ...]


class Events(Message):
    """Token events for requests of this gateway, in order."""

    events: tuple[TokenEvent, ...]


class Progressed(Message):
    """Prompt tokens done for requests in prefill; shows that a silent stream is alive."""

    prefilled: dict[RequestId, int]


class Refused(Message):
    """The request will not run, or not run on; nothing of it is held."""

    id: RequestId
    kind: RefusalKind
    message: str
    """Names the thing, the numbers and the mend."""
    retry_after_s: int | None = None


class Cancelled(Message):
    """The request holds nothing any more, here or in a worker."""

    id: RequestId


QUEUE_WAIT_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Bounds in seconds of `Stats.waits`."""


class WorkerSnapshot(Part):
    name: str
    incarnation: int
    model: str
    stats: WorkerStats
    silent_s: float
    """Seconds since its last word while it has work and a turn; else 0."""
    kv_reserved: int = 0
    """Bytes set aside for the KV of its requests."""
    kv_capacity: int = 0
    """Bytes that it may take; 0 where the worker states none."""


class Stats(Message):
    """The scheduler's counters since its start, and gauges."""

    ticket: int
    waiting: int
    running: int
    submitted: int
    finished: int
    cancelled: int
    refused: dict[RefusalKind, int]
    resumed: int
    worker_deaths: int
    workers: tuple[WorkerSnapshot, ...]
    preempted: int = 0
    waits: Tally = empty(QUEUE_WAIT_BUCKETS)
    """How long requests waited for each of their runs."""


GatewayToScheduler = GatewayHello | Submit | CancelRequest | AskStats
SchedulerToGateway = Models | Events | Progressed | Refused | Cancelled | Stats

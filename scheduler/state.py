"""All that the scheduler knows: models, workers, gateways, requests. Each change keeps its indexes in step."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pomona.config import Config, Method
from pomona.runtime.mailbox import Peer
from pomona.scheduler.job import Afterwards, Job, Phase
from pomona.scheduler.messages import ModelState
from pomona.scheduler.rate import CompletionRate
from pomona.scheduler.shares import Shares
from pomona.scheduler.turns import Turns
from pomona.workers.kv_cost import KVCost
from pomona.workers.messages import Request, RequestId, WorkerReady, WorkerStats

UNKNOWN = KVCost()
AHEAD = 512
"""Output tokens for which KV is reserved ahead, in steps of as many: few answers become as long as they may."""
UNBOUNDED = 1 << 62
"""Bytes of KV of a worker that states no budget."""


@dataclass(slots=True, eq=False)
class Worker:
    """One incarnation of a worker that said it is ready."""

    peer: Peer
    model: str
    max_running: int
    context: int
    progressed: float
    """When it last showed progress, or got work after having none."""
    held: dict[RequestId, Job] = field(default_factory=dict)
    prefilled: dict[RequestId, int] = field(default_factory=dict)
    stats: WorkerStats = field(default_factory=WorkerStats)
    leaving: bool = False
    """It was told to stop: it gets no new request."""
    kv_cost: KVCost = UNKNOWN
    kv_capacity: int = UNBOUNDED
    """Bytes that the KV of the requests it holds may take together."""

    @property
    def free(self) -> int:
        return 0 if self.leaving else self.max_running - len(self.held)

    @property
    def kv_reserved(self) -> int:
        """Bytes that are set aside for the requests it holds."""
        return sum(job.kv_bytes for job in self.held.values())

    @property
    def kv_free(self) -> int:
        return self.kv_capacity - self.kv_reserved

    def kv_need(self, job: Job) -> int:
        """Bytes to reserve: for its prompt, its answer so far, and AHEAD to 2 * AHEAD of the tokens that it may add."""
        answer = min(job.request.limits.max_tokens, (len(job.committed) // AHEAD + 2) * AHEAD)
        return self.kv_cost.bytes_for(len(job.request.prompt) + answer)

    def holds(self, request: Request) -> bool:
        """Its KV fits at full length where the worker holds nothing else."""
        return self.kv_whole(request) <= self.kv_capacity

    def kv_whole(self, request: Request) -> int:
        """Bytes of the request's KV once its answer is as long as it may become."""
        return self.kv_cost.bytes_for(len(request.prompt) + request.limits.max_tokens)


@dataclass(slots=True, eq=False)
class Model:
    id: str
    context: int = 0
    """Tokens of prompt and answer together; 0 until it is known."""
    failure: str | None = None
    """Why none of its workers will come: the supervisor gave up on all of them."""
    methods: tuple[Method, ...] | None = None
    """Of speculation; None until one of its workers was ready."""


class State:
    """Requests are moved by `admit`, `assign`, `requeue`, `withdraw` and `end` only."""

    def __init__(self, config: Config) -> None:
        self.limits = config.scheduler
        self.models = {model.id: Model(model.id, model.max_context or 0) for model in config.models}
        self.workers: dict[Peer, Worker] = {}
        self.gateways: set[Peer] = set()
        self.jobs: dict[RequestId, Job] = {}
        self.queues: dict[str, dict[RequestId, Job]] = {}
        """Waiting requests of each model, the longest waiting first; no queue is empty."""
        self.waiting = 0
        self.shares = Shares()
        self.turns = Turns(config.scheduler.slice_s)
        """Of the one device that all workers share: sockets are of one machine, and so are all workers."""
        self._weights = {model.id: model.weight for model in config.models}
        self.rate = CompletionRate()
        self.stopping = False
        self._orders = 0

    @property
    def running(self) -> int:
        """Requests that a worker holds."""
        return len(self.jobs) - self.waiting

    def workers_of(self, model: str) -> Iterator[Worker]:
        return (worker for worker in self.workers.values() if worker.model == model)

    def model_states(self) -> tuple[ModelState, ...]:
        return tuple(self._model_state(model) for model in self.models.values())

    def _model_state(self, model: Model) -> ModelState:
        workers = sum(1 for _ in self.workers_of(model.id))
        failed = not workers and model.failure is not None
        return ModelState(
            id=model.id,
            state="ready" if workers else "failed" if failed else "loading",
            context=model.context,
            workers=workers,
            detail=model.failure or "" if failed else "",
            methods=model.methods,
        )

    def register(self, peer: Peer, ready: WorkerReady, now: float) -> Worker:
        """Take a worker in; its former incarnation, or its former self, must have been removed."""
        model = self.models.setdefault(ready.model, Model(ready.model))
        model.context, model.methods = ready.context, ready.methods
        self.turns.add(peer, self._weights.get(ready.model, 1.0))
        worker = self.workers[peer] = Worker(
            peer,
            ready.model,
            ready.max_running,
            ready.context,
            now,
            kv_cost=ready.kv_cost,
            kv_capacity=ready.kv_budget or UNBOUNDED,
        )
        return worker

    def remove(self, worker: Worker) -> tuple[Job, ...]:
        """The worker is gone; the caller moves on each of the requests that it held, which are returned."""
        del self.workers[worker.peer]
        self.turns.gone(worker.peer)
        return tuple(worker.held.values())

    def admit(self, request: Request, gateway: Peer, now: float, *, resumed: bool) -> Job:
        """A new request waits."""
        self._orders += 1
        first = resumed and bool(request.committed)
        committed = list(request.committed)
        job = Job(request, gateway, self._orders, now, committed, first=first, admitted=now, charged=first)
        self.jobs[job.id] = job
        self.shares.join(request.client)
        self._enqueue(job)
        return job

    def assign(self, job: Job, worker: Worker, now: float) -> None:
        """A waiting request goes to a worker."""
        job.move(Phase.RUNNING)
        self._dequeue(job)
        if not worker.held:
            worker.progressed = now
            self.turns.has_work(worker.peer)
        worker.held[job.id] = job
        job.worker, job.kv_bytes, job.overtaken = worker.peer, worker.kv_need(job), 0
        if not job.charged:
            job.charged = True
            self.shares.charge(job.request.client, prompt=len(job.request.prompt))

    def commit(self, job: Job, tokens: tuple[int, ...]) -> None:
        """Output tokens of a running request go to its gateway."""
        steps = len(job.committed) // AHEAD
        job.committed.extend(tokens)
        if job.worker is not None and len(job.committed) // AHEAD > steps:
            job.kv_bytes = self.workers[job.worker].kv_need(job)
        self.shares.charge(job.request.client, output=len(tokens))

    def withdraw(self, job: Job, afterwards: Afterwards, now: float) -> None:
        """The worker that runs it is told to drop it."""
        job.move(Phase.CANCELLING)
        job.afterwards, job.cancelled_at = afterwards, now

    def requeue(self, job: Job, now: float) -> None:
        """No worker holds it any more; it waits again: ahead of those that never ran, or in its place if preempted."""
        job.move(Phase.WAITING)
        self._release(job)
        job.first, job.preempted, job.waiting_since = not job.preempted, False, now
        self._enqueue(job)

    def supersede(self, job: Job, request: Request, gateway: Peer) -> None:
        """A withdrawn request was submitted anew: what runs once the worker has dropped it is `request`."""
        self.shares.leave(job.request.client)
        self.shares.join(request.client)
        job.request, job.gateway, job.committed = request, gateway, list(request.committed)
        job.afterwards, job.preempted = "again", False

    def end(self, job: Job, now: float) -> None:
        """It is forgotten, in whatever phase it was."""
        waiting, held = job.phase is Phase.WAITING, job.worker is not None
        job.move(Phase.ENDED)
        if waiting:
            self._dequeue(job)
        if held:
            self._release(job)
            self.rate.note(now)
        self.shares.leave(job.request.client)
        del self.jobs[job.id]

    def _enqueue(self, job: Job) -> None:
        self.queues.setdefault(job.request.model, {})[job.id] = job
        self.waiting += 1

    def _dequeue(self, job: Job) -> None:
        queue = self.queues[job.request.model]
        del queue[job.id]
        if not queue:
            del self.queues[job.request.model]
        self.waiting -= 1

    def _release(self, job: Job) -> None:
        worker = self.workers.get(job.worker) if job.worker is not None else None
        if worker is not None:
            worker.held.pop(job.id, None)
            worker.prefilled.pop(job.id, None)
            if not worker.held:
                self.turns.idle(worker.peer)
        job.worker, job.kv_bytes = None, 0

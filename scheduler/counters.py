"""What the scheduler counts. Submitted are as many as finished, cancelled, refused, running and waiting together."""

from collections import Counter
from dataclasses import dataclass, field

from pomona.runtime.tally import Histogram
from pomona.scheduler.messages import QUEUE_WAIT_BUCKETS, RefusalKind, Stats, WorkerSnapshot
from pomona.scheduler.state import UNBOUNDED, State, Worker


@dataclass(slots=True)
class Counters:
    """Since the scheduler's start."""

    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    resumed: int = 0
    worker_deaths: int = 0
    refused: Counter[RefusalKind] = field(default_factory=Counter)
    preempted: int = 0
    waits: Histogram = field(default_factory=lambda: Histogram(QUEUE_WAIT_BUCKETS))


def stats(state: State, counters: Counters, ticket: int, now: float) -> Stats:
    """The answer to `AskStats`."""
    return Stats(
        ticket=ticket,
        waiting=state.waiting,
        running=state.running,
        submitted=counters.submitted,
        finished=counters.finished,
        cancelled=counters.cancelled,
        refused=dict(counters.refused),
        resumed=counters.resumed,
        worker_deaths=counters.worker_deaths,
        workers=tuple(
            WorkerSnapshot(
                worker.peer.name,
                worker.peer.incarnation,
                worker.model,
                worker.stats,
                _silent_s(state, worker, now),
                worker.kv_reserved,
                0 if worker.kv_capacity == UNBOUNDED else worker.kv_capacity,
            )
            for worker in state.workers.values()
        ),
        preempted=counters.preempted,
        waits=counters.waits.tally(),
    )


def _silent_s(state: State, worker: Worker, now: float) -> float:
    since = state.turns.silent_since(worker.peer, worker.progressed) if worker.held else None
    return 0.0 if since is None else now - since

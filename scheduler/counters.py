"""What the scheduler counts. Submitted are as many as finished, cancelled, refused, running and waiting together."""

from collections import Counter
from dataclasses import dataclass, field

from pomona.scheduler.messages import RefusalKind, Stats, WorkerSnapshot
from pomona.scheduler.state import State


@dataclass(slots=True)
class Counters:
    """Since the scheduler's start."""

    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    resumed: int = 0
    worker_deaths: int = 0
    refused: Counter[RefusalKind] = field(default_factory=Counter)


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
                now - worker.progressed if worker.held else 0.0,
            )
            for worker in state.workers.values()
        ),
    )

"""Who runs next: a pure function of the state and the time. No socket, clock, log or MLX here."""

from collections.abc import Iterator
from dataclasses import dataclass

from pomona.runtime.mailbox import Peer
from pomona.scheduler.admission import Refusal, hopeless, outgrows
from pomona.scheduler.job import Job, Phase
from pomona.scheduler.shares import PROMPT_WEIGHT
from pomona.scheduler.state import State, Worker
from pomona.workers.messages import RequestId


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Assign the request to the worker."""

    id: RequestId
    worker: Peer


@dataclass(frozen=True, slots=True)
class Refuse:
    """End the waiting request."""

    id: RequestId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Condemn:
    """Have the worker killed; what it held runs again."""

    worker: Peer
    reason: str


Command = Dispatch | Refuse | Condemn


def plan(state: State, now: float) -> tuple[Command, ...]:
    """The commands that follow from the state at `now`, each legal in the state that the ones before it leave.

    Within a model the order is: requests that ran before, then priority, then the client that got least, then age.
    Among replicas the least loaded comes first. A worker never holds more than its `max_running`.
    """
    condemned = tuple(_condemn(state, now))
    gone = {command.worker for command in condemned}
    placed = tuple(command for model in state.queues for command in _place(state, model, gone))
    expired = _expire(state, now, {command.id for command in placed})
    return (*condemned, *placed, *expired)


def next_deadline(state: State, now: float) -> float | None:
    """Seconds from `now` until `plan` may have something new to say though nothing happened; None: never."""
    times = [_patience_ends(state, next(iter(queue.values()))) for queue in state.queues.values()]
    times += [_silence_ends(state, worker) for worker in state.workers.values() if worker.held]
    return max(0.0, min(times) - now) if times else None


def _patience_ends(state: State, job: Job) -> float:
    return job.waiting_since + state.limits.max_waiting_s


def _silence_ends(state: State, worker: Worker) -> float:
    """When a worker with work counts as stuck: no progress for too long, or a cancel not heeded for as long."""
    cancels = [job.cancelled_at for job in worker.held.values() if job.phase is Phase.CANCELLING]
    return min([worker.progressed, *cancels]) + state.limits.progress_timeout_s


def _condemn(state: State, now: float) -> Iterator[Condemn]:
    for worker in state.workers.values():
        if worker.held and now >= _silence_ends(state, worker):
            yield Condemn(
                worker.peer,
                f"it holds {len(worker.held)} requests and made no progress, or did not heed a cancel, for "
                f"{state.limits.progress_timeout_s:g} s (scheduler.progress_timeout_s)",
            )


def _place(state: State, model_id: str, gone: set[Peer]) -> Iterator[Dispatch | Refuse]:
    """Fill the free rows of one model's workers, and refuse what turns out not to fit."""
    model, queue = state.models[model_id], state.queues[model_id]
    if (lost := hopeless(state, model)) is not None:
        yield from (Refuse(id, lost) for id in queue)
        return
    free = {worker: worker.free for worker in state.workers_of(model_id) if worker.free > 0 and worker.peer not in gone}
    left = dict(queue)
    extra: dict[str, float] = {}
    while free and left:
        job = min(left.values(), key=lambda job: _rank(state, job, extra))
        del left[job.id]
        if (misfit := outgrows(model, job.request)) is not None:
            yield Refuse(job.id, misfit)
            continue
        worker = min(free, key=lambda worker: ((worker.max_running - free[worker]) / worker.max_running, worker.peer))
        yield Dispatch(job.id, worker.peer)
        extra[job.request.client] = extra.get(job.request.client, 0.0) + PROMPT_WEIGHT * len(job.request.prompt)
        free[worker] -= 1
        if not free[worker]:
            del free[worker]


def _rank(state: State, job: Job, extra: dict[str, float]) -> tuple[bool, int, float, int]:
    client = job.request.client
    return (not job.first, job.request.priority, state.shares.used(client) + extra.get(client, 0.0), job.order)


def _expire(state: State, now: float, placed: set[RequestId]) -> Iterator[Refuse]:
    for queue in state.queues.values():
        for job in queue.values():
            if now < _patience_ends(state, job):
                break
            if job.id not in placed:
                waited = f"the request waited {now - job.waiting_since:.0f} s for a free place"
                limit = f"the limit is {state.limits.max_waiting_s:g} s (scheduler.max_waiting_s)"
                retry = state.rate.retry_after_s(state.waiting, now)
                yield Refuse(job.id, Refusal("waited_too_long", f"{waited}; {limit}; send it again later", retry))

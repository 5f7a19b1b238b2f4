"""Who runs next: a pure function of the state and the time. No socket, clock, log or MLX here."""

from collections.abc import Iterator, Set

from pomona.runtime.mailbox import Peer
from pomona.scheduler.commands import Command, Condemn, Dispatch, Expire, Preempt, Refuse
from pomona.scheduler.job import Job, Phase
from pomona.scheduler.placement import place
from pomona.scheduler.refusal import Refusal
from pomona.scheduler.room import urgency
from pomona.scheduler.state import State, Worker
from pomona.workers.messages import RequestId

__all__ = ["Command", "Condemn", "Dispatch", "Expire", "Preempt", "Refuse", "next_deadline", "plan"]


def plan(state: State, now: float) -> tuple[Command, ...]:
    """The commands that follow from the state at `now`, each legal in the state that the ones before it leave.

    Stuck workers are condemned, requests beyond their total time end, workers whose requests have outgrown their memory
    shed some, free places are filled (`placement.place`), and who waited too long is refused. A worker never holds more
    than its `max_running`, nor more KV than its capacity.
    """
    condemned = tuple(_condemn(state, now))
    gone = {command.worker for command in condemned}
    overdue = {job.id: job for job in _overdue(state, now) if job.worker not in gone}
    ended = tuple(_time_out(state, job) for job in overdue.values())
    shed = tuple(_shed(state, gone, overdue.keys()))
    spared = overdue.keys() | {command.id for command in shed}
    placed = tuple(command for model in state.queues for command in place(state, model, gone, spared))
    settled = overdue.keys() | {command.id for command in placed if isinstance(command, Dispatch | Refuse)}
    return (*condemned, *ended, *shed, *placed, *_expire(state, now, settled))


def next_deadline(state: State, now: float) -> float | None:
    """Seconds from `now` until `plan` may have something new to say though nothing happened; None: never."""
    times = [_patience_ends(state, next(iter(queue.values()))) for queue in state.queues.values()]
    times += [ends for worker in state.workers.values() if (ends := _silence_ends(state, worker)) is not None]
    if (turn_ends := state.turns.deadline()) is not None:
        times.append(turn_ends)
    if state.limits.max_total_s and (job := next((job for job in state.jobs.values() if not job.ending), None)):
        times.append(_time_ends(state, job))
    return max(0.0, min(times) - now) if times else None


def _patience_ends(state: State, job: Job) -> float:
    return job.waiting_since + state.limits.max_waiting_s


def _time_ends(state: State, job: Job) -> float:
    return job.admitted + state.limits.max_total_s


def _silence_ends(state: State, worker: Worker) -> float | None:
    """When a worker counts as stuck: no progress in its turn, or a turn not ended or a cancel not heeded, for too long.

    None if nothing is awaited from it: it is idle, or waits for its turn.
    """
    since = [job.cancelled_at for job in worker.held.values() if job.phase is Phase.CANCELLING]
    if (silent := state.turns.silent_since(worker.peer, worker.progressed)) is not None:
        since.append(silent)
    return min(since) + state.limits.progress_timeout_s if since else None


def _condemn(state: State, now: float) -> Iterator[Condemn]:
    for worker in state.workers.values():
        if (ends := _silence_ends(state, worker)) is not None and now >= ends:
            yield Condemn(
                worker.peer,
                f"it holds {len(worker.held)} requests and made no progress, did not end its turn, "
                f"or did not heed a cancel, for {state.limits.progress_timeout_s:g} s (scheduler.progress_timeout_s)",
            )


def _overdue(state: State, now: float) -> Iterator[Job]:
    """The requests whose total time is over, and that are not ending anyway."""
    if not state.limits.max_total_s:
        return
    for job in state.jobs.values():  # the first admitted first
        if now < _time_ends(state, job):
            return
        if not job.ending:
            yield job


def _shed(state: State, gone: Set[Peer], spared: Set[RequestId]) -> Iterator[Preempt]:
    """The least urgent, youngest requests of a worker whose answers have become so long that not all can go on.

    The most urgent, oldest one goes on in any case: it fits alone.
    """
    for worker in state.workers.values():
        if worker.kv_free >= 0 or worker.peer in gone:
            continue
        staying = [job for job in worker.held.values() if job.phase is Phase.RUNNING and job.id not in spared]
        excess = sum(job.kv_bytes for job in staying) - worker.kv_capacity
        for job in sorted(staying, key=urgency, reverse=True):
            if excess <= 0:
                break
            excess -= job.kv_bytes
            yield Preempt(job.id)


def _time_out(state: State, job: Job) -> Refuse | Expire:
    limit = f"{state.limits.max_total_s:g} s (scheduler.max_total_s)"
    done = f"{len(job.committed)} of at most {job.request.limits.max_tokens} output tokens"
    mend = "ask for fewer tokens, or raise the limit"
    why = Refusal("timed_out", f"the request took longer than {limit} and ends after {done}; {mend}")
    return Refuse(job.id, why) if job.phase is Phase.WAITING else Expire(job.id, why)


def _expire(state: State, now: float, settled: Set[RequestId]) -> Iterator[Refuse]:
    for queue in state.queues.values():
        for job in queue.values():
            if now < _patience_ends(state, job):
                break
            if job.id not in settled:
                ready = any(state.workers_of(job.request.model))
                what = "a free place" if ready else f"model {job.request.model} to load"
                waited = f"the request waited {now - job.waiting_since:.0f} s for {what}"
                limit = f"the limit is {state.limits.max_waiting_s:g} s (scheduler.max_waiting_s)"
                retry = state.rate.retry_after_s(state.waiting, now)
                yield Refuse(job.id, Refusal("waited_too_long", f"{waited}; {limit}; send it again later", retry))

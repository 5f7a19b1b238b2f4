"""Which waiting request of one model goes to which worker, and which running one makes room for it."""

from collections.abc import Iterator, Sequence, Set

from pomona.runtime.mailbox import Peer
from pomona.scheduler.admission import hopeless, outgrows
from pomona.scheduler.commands import Command, Dispatch, Preempt, Refuse
from pomona.scheduler.job import Job, Phase
from pomona.scheduler.ranking import MAX_OVERTAKEN, Ranking
from pomona.scheduler.room import Room
from pomona.scheduler.state import State
from pomona.workers.messages import RequestId


def place(state: State, model_id: str, gone: Set[Peer], spared: Set[RequestId]) -> Iterator[Command]:
    """Fill what one model's workers have free, in the order of `Ranking`, and refuse what turns out not to fit.

    A request is dispatched only where a row is free, where its KV would fit at its full length if it were alone, and
    where what it reserves now (`Worker.kv_need`) fits beside the others. One that does not fit may

    - claim what a worker is about to drop, so that none behind it gets that;
    - have less urgent running requests preempted, and claim their places. Equal priorities never preempt each other,
      and a preempted request waits with its own priority and age, so no two push each other out in turns;
    - be overtaken by smaller ones, up to MAX_OVERTAKEN of them. From then on it is the first of its priority, and the
      worker that is nearest to having room for it takes none behind it until it fits.

    `gone` workers take nothing; `spared` requests are neither placed nor preempted.
    """
    model, queue = state.models[model_id], state.queues[model_id]
    if (lost := hopeless(state, model)) is not None:
        yield from (Refuse(id, lost) for id in queue if id not in spared)
        return
    rooms = [Room(worker) for worker in state.workers_of(model_id) if not worker.leaving and worker.peer not in gone]
    waiting = [job for job in queue.values() if job.id not in spared]
    least_urgent = _least_urgent(rooms)
    if not any(room.rows > 0 for room in rooms) and not any(job.request.priority < least_urgent for job in waiting):
        return
    ranking = Ranking(waiting, state.shares)
    passed: list[RequestId] = []
    for job in ranking:
        request = job.request
        if request.priority >= least_urgent and not any(room.rows > 0 for room in rooms):
            continue
        if (misfit := outgrows(state, model, request)) is not None:
            yield Refuse(job.id, misfit)
        elif fitting := [room for room in rooms if room.fits(job)]:
            room = min(fitting, key=lambda room: room.load)
            room.take(job)
            ranking.charge(job)
            yield Dispatch(job.id, room.worker.peer, tuple(passed))
        elif (soon := next((room for room in rooms if room.fits_soon(job)), None)) is not None:
            soon.claim(job)
        elif (cheapest := _cheapest(rooms, job, spared)) is not None:
            room, victims = cheapest
            yield from (Preempt(victim.id) for victim in victims)
            room.preempt(victims)
            room.claim(job)
        elif job.overtaken >= MAX_OVERTAKEN:
            _nearest(rooms, job).close()
        else:
            passed.append(job.id)


def _least_urgent(rooms: Sequence[Room]) -> float:
    """The highest priority number that runs."""
    return max(
        (job.request.priority for room in rooms for job in room.worker.held.values() if job.phase is Phase.RUNNING),
        default=float("-inf"),
    )


def _cheapest(rooms: Sequence[Room], job: Job, spared: Set[RequestId]) -> tuple[Room, tuple[Job, ...]] | None:
    """Where the most urgent of those that have to go is least urgent; then where the fewest go, the youngest first."""
    ways = [(room, victims) for room in rooms if (victims := room.victims(job, spared))]
    return min(
        ways,
        key=lambda way: (-way[1][-1].request.priority, len(way[1]), -way[1][-1].order),
        default=None,
    )


def _nearest(rooms: Sequence[Room], job: Job) -> Room:
    """Of the workers that can hold it when they are empty, the one that has reserved least."""
    able = [room for room in rooms if room.worker.holds(job.request)] or rooms
    return min(able, key=lambda room: (room.worker.kv_reserved, room.worker.peer))

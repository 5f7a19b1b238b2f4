"""What happens to requests: each is submitted once, delivered in order, and ends once, whatever befalls its workers."""

import logging
from typing import assert_never

from pomona.runtime.mailbox import Peer
from pomona.runtime.wire import replace
from pomona.scheduler.admission import refusal
from pomona.scheduler.counters import Counters
from pomona.scheduler.job import Afterwards, Job, Phase
from pomona.scheduler.messages import Cancelled, Events, Progressed, Refused, Submit
from pomona.scheduler.outbox import Outbox
from pomona.scheduler.refusal import Refusal
from pomona.scheduler.sequence import place
from pomona.scheduler.state import State, Worker
from pomona.workers.messages import Assign, Cancel, Dropped, RequestId, Stepped, TokenEvent

logger = logging.getLogger(__name__)


class Runs:
    """Moves requests through the state, and says what their gateways and workers have to know of it."""

    def __init__(self, state: State, counters: Counters, outbox: Outbox) -> None:
        self._state = state
        self._counters = counters
        self._outbox = outbox

    def submit(self, gateway: Peer, message: Submit, now: float) -> None:
        """Admit or refuse; a former run under the same id ends without a word."""
        self._counters.submitted += 1
        request = message.request
        job = self._state.jobs.get(request.id)
        if job is not None:
            self.withdraw(job, "silence", now)
        why = refusal(self._state, request, now, resumed=message.resumed)
        if why is not None:
            self._tell(gateway, request.id, why)
        elif job is not None and job.phase is Phase.CANCELLING:
            self._counters.cancelled += 1
            self._state.supersede(job, request, gateway)
        else:
            self._state.admit(request, gateway, now, resumed=message.resumed)

    def cancel(self, gateway: Peer, id: RequestId, now: float) -> None:
        """Acknowledged at once if no worker holds it, else when the worker has dropped it."""
        job = self._state.jobs.get(id)
        if job is None or job.gateway != gateway:
            self._outbox.send(gateway, Cancelled(id))
        else:
            self.withdraw(job, "acknowledge", now)

    def withdraw(self, job: Job, afterwards: Afterwards, now: float) -> None:
        """Take it from wherever it is; legal in every phase."""
        match job.phase:
            case Phase.WAITING:
                job.afterwards = afterwards
                self._conclude(job, now)
            case Phase.RUNNING:
                self._state.withdraw(job, afterwards, now)
                if job.worker is not None:
                    self._outbox.send(job.worker, Cancel(job.id))
            case Phase.CANCELLING:
                job.afterwards = afterwards
            case Phase.ENDED:
                pass
            case _:
                assert_never(job.phase)

    def assign(self, job: Job, worker: Worker, now: float) -> None:
        """Send it to the worker with all tokens that its client has."""
        self._counters.waits.note(now - job.waiting_since)
        self._state.assign(job, worker, now)
        self.give_turns(now)  # before the request, for which the worker may have to wait
        self._outbox.send(worker.peer, Assign(replace(job.request, committed=tuple(job.committed))))

    def give_turns(self, now: float) -> None:
        """Tell the workers whose turn it is, as far as they have to know."""
        for worker, order in self._state.turns.decide(now):
            self._outbox.send(worker, order)

    def preempt(self, job: Job, now: float) -> None:
        """Its worker drops it for a more urgent one; then it waits again. It counts as no loss of a run."""
        self._counters.preempted += 1
        job.preempted = True
        self.withdraw(job, "again", now)
        logger.info("request-preempted id=%s committed=%d", job.id, len(job.committed))

    def expire(self, job: Job, why: Refusal, now: float) -> None:
        """Its worker drops it; then its gateway learns why."""
        job.refusal = why
        self.withdraw(job, "refuse", now)

    def refuse(self, job: Job, why: Refusal, now: float) -> None:
        """It ends here, whoever holds it."""
        self._tell(job.gateway, job.id, why)
        self._state.end(job, now)

    def stepped(self, worker: Worker, message: Stepped, now: float) -> None:
        """Pass on what a worker committed, in order, one message for each gateway."""
        worker.stats = message.stats
        events: dict[Peer, list[TokenEvent]] = {}
        for event in message.events:
            if (job := worker.held.get(event.id)) is None:
                continue
            worker.progressed = now
            if job.phase is Phase.RUNNING and self._commit(job, event, now):
                events.setdefault(job.gateway, []).append(event)
        prefilled: dict[Peer, dict[RequestId, int]] = {}
        for id, tokens in message.prefilled.items():
            if (job := worker.held.get(id)) is not None and worker.prefilled.get(id) != tokens:
                worker.progressed, worker.prefilled[id] = now, tokens
                if job.phase is Phase.RUNNING:
                    prefilled.setdefault(job.gateway, {})[id] = tokens
        for gateway, theirs in events.items():
            self._outbox.send(gateway, Events(tuple(theirs)))
        for gateway, progress in prefilled.items():
            self._outbox.send(gateway, Progressed(progress))

    def dropped(self, worker: Worker, message: Dropped, now: float) -> None:
        """The answer to a cancel; of a request that was not cancelled, it is the loss of its run."""
        if (job := worker.held.get(message.id)) is None:
            return
        worker.progressed = now
        self.lost(job, now)

    def lost(self, job: Job, now: float) -> None:
        """Its worker holds it no more, and will send nothing of it."""
        if job.phase is Phase.RUNNING:
            job.resumes += 1
            job.afterwards = "again"
        self._conclude(job, now)

    def _commit(self, job: Job, event: TokenEvent, now: float) -> bool:
        """True if the event is the next of its request, which then has it."""
        match place(event, len(job.committed)):
            case "next":
                self._state.commit(job, event.tokens)
                if event.finish is not None:
                    self._counters.finished += 1
                    self._state.end(job, now)
                return True
            case "seen":
                return False
            case "broken":
                logger.error("sequence-broken id=%s seen=%d position=%d", job.id, len(job.committed), event.position)
                job.resumes += 1
                self.withdraw(job, "again", now)
                return False

    def _conclude(self, job: Job, now: float) -> None:
        match job.afterwards:
            case "acknowledge":
                self._outbox.send(job.gateway, Cancelled(job.id))
                self._counters.cancelled += 1
                self._state.end(job, now)
            case "silence":
                self._counters.cancelled += 1
                self._state.end(job, now)
            case "again":
                self._again(job, now)
            case "refuse":
                self.refuse(job, job.refusal or Refusal("unavailable", "the scheduler ended the request"), now)
            case _:
                assert_never(job.afterwards)

    def _again(self, job: Job, now: float) -> None:
        limit = self._state.limits.max_resumes
        if job.preempted:
            self._state.requeue(job, now)
            return
        if job.resumes > limit:
            reason = (
                f"the request was lost {job.resumes} times with the worker that ran it; at most {limit} are mended "
                "(scheduler.max_resumes), since it may be the cause"
            )
            self.refuse(job, Refusal("poison", reason), now)
            return
        self._counters.resumed += 1
        self._state.requeue(job, now)
        logger.info("request-resumed id=%s committed=%d resumes=%d", job.id, len(job.committed), job.resumes)

    def _tell(self, gateway: Peer, id: RequestId, why: Refusal) -> None:
        self._counters.refused[why.kind] += 1
        self._outbox.send(gateway, Refused(id, why.kind, why.message, why.retry_after_s))
        logger.info("request-refused id=%s kind=%s", id, why.kind)

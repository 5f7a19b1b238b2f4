"""The scheduler without its sockets: messages, rosters and the time in; messages and kills out."""

import logging
from collections.abc import Sequence
from typing import assert_never

from pomona.config import Config
from pomona.runtime.control import ActorState, ActorStatus, Roster
from pomona.runtime.mailbox import Peer
from pomona.scheduler.commands import Command, Condemn, Dispatch, Expire, Preempt, Refuse
from pomona.scheduler.counters import Counters, stats
from pomona.scheduler.job import Phase
from pomona.scheduler.messages import (
    AskStats,
    CancelRequest,
    GatewayHello,
    GatewayToScheduler,
    Models,
    Submit,
)
from pomona.scheduler.outbox import Outbox
from pomona.scheduler.plan import plan
from pomona.scheduler.refusal import Refusal
from pomona.scheduler.runs import Runs
from pomona.scheduler.state import State, Worker
from pomona.workers.messages import Drain, Dropped, Stepped, TurnEnded, WorkerReady, WorkerToScheduler

SchedulerInbound = GatewayToScheduler | WorkerToScheduler
GONE: frozenset[ActorState] = frozenset({"stopped", "dead", "failed"})

logger = logging.getLogger(__name__)


class Core:
    """Applies what peers say to the state; `decide` carries out what the plan says about it."""

    def __init__(self, config: Config) -> None:
        self.state = State(config)
        self.counters = Counters()
        self.outbox = Outbox()
        self._runs = Runs(self.state, self.counters, self.outbox)
        self._roster = Roster(())
        self._condemned: set[Peer] = set()
        self._announced = self.state.model_states()

    @property
    def idle(self) -> bool:
        """No request is left."""
        return not self.state.jobs

    def receive(self, peer: Peer, message: SchedulerInbound, now: float) -> None:
        """Take a message in. Those of peers that are dead, or never introduced themselves, are dropped."""
        match message:
            case GatewayHello():
                self._greet(peer, now)
            case WorkerReady():
                self._register(peer, message, now)
            case Submit() | CancelRequest() | AskStats():
                if peer in self.state.gateways:
                    self._serve(peer, message, now)
            case Stepped():
                if (worker := self.state.workers.get(peer)) is not None:
                    self._runs.stepped(worker, message, now)
            case Dropped():
                if (worker := self.state.workers.get(peer)) is not None:
                    self._runs.dropped(worker, message, now)
            case TurnEnded(number, seconds):
                if peer in self.state.workers:
                    self.state.turns.ended(peer, number, seconds, now)
            case _:
                assert_never(message)

    def decide(self, now: float) -> None:
        """Plan and carry it out, until nothing more follows."""
        while commands := plan(self.state, now):
            for command in commands:
                self._carry_out(command, now)
        self._runs.give_turns(now)

    def _carry_out(self, command: Command, now: float) -> None:
        match command:
            case Condemn(worker, reason):
                self._condemn(self.state.workers[worker], reason, now)
            case Dispatch(id, worker, passed):
                self._runs.assign(self.state.jobs[id], self.state.workers[worker], now)
                for other in passed:
                    self.state.jobs[other].overtaken += 1
            case Preempt(id):
                self._runs.preempt(self.state.jobs[id], now)
            case Expire(id, why):
                self._runs.expire(self.state.jobs[id], why, now)
            case Refuse(id, why):
                self._runs.refuse(self.state.jobs[id], why, now)
            case _:
                assert_never(command)

    def roster_changed(self, roster: Roster, now: float) -> None:
        """Drop the peers that the supervisor declares dead, and learn which models will not come."""
        self._roster = roster
        for worker in tuple(self.state.workers.values()):
            if self._is_gone(worker.peer):
                self._lose(worker, "it died", now)
            else:
                status = roster.find(worker.peer.name)
                worker.leaving = status is not None and status.state == "stopping"
        for gateway in tuple(self.state.gateways):
            if self._is_gone(gateway):
                self._forget(gateway, now)
        for model in self.state.models.values():
            model.failure = _failure([actor for actor in roster.actors if actor.model == model.id])
        self._announce()

    def unreachable(self, peer: Peer, now: float) -> None:
        """A message could not be sent to it: it is dead, or so stuck that it has to die.

        A worker that says `WorkerReady` again all the same is taken in again.
        """
        worker = self.state.workers.get(peer)
        if worker is None and peer not in self.state.gateways:
            return
        self.outbox.kill(peer, "it takes no messages from the scheduler")
        if worker is not None:
            self._lose(worker, "it takes no messages", now)
            self._announce()
        else:
            self._forget(peer, now)

    def stop(self, now: float) -> None:
        """Refuse what comes, and what waits for a first run; what runs, or ran before, goes on."""
        self.state.stopping = True
        for job in tuple(self.state.jobs.values()):
            if job.phase is Phase.WAITING and not job.first:
                self._runs.refuse(job, Refusal("unavailable", "the server is stopping; send the request again", 5), now)

    def abandon(self, now: float) -> None:
        """The grace of a stop is over: tell the workers to drop everything, and the clients that it ended."""
        for worker in tuple(self.state.workers.values()):
            self.outbox.send(worker.peer, Drain())
            for job in self.state.remove(worker):
                if job.phase is Phase.CANCELLING:
                    self._runs.lost(job, now)
        for job in tuple(self.state.jobs.values()):
            self._runs.refuse(job, Refusal("unavailable", "the server stopped before the answer was complete", 5), now)

    def _serve(self, gateway: Peer, message: Submit | CancelRequest | AskStats, now: float) -> None:
        match message:
            case Submit():
                if self.state.waiting >= self.state.limits.max_waiting:
                    self.decide(now)  # so that only those count as waiting for which there is no place
                self._runs.submit(gateway, message, now)
            case CancelRequest(id):
                self._runs.cancel(gateway, id, now)
            case AskStats(ticket):
                self.outbox.send(gateway, stats(self.state, self.counters, ticket, now))
            case _:
                assert_never(message)

    def _greet(self, gateway: Peer, now: float) -> None:
        """A fresh link of a gateway: it knows nothing of what an earlier link submitted, so that ends."""
        if self._is_stale(gateway, self.state.gateways):
            return
        for former in [other for other in self.state.gateways if other.name == gateway.name]:
            self._forget(former, now)
        self.state.gateways.add(gateway)
        self.outbox.send(gateway, Models(self.state.model_states()))
        logger.info("gateway-ready name=%s incarnation=%d", *gateway)

    def _forget(self, gateway: Peer, now: float) -> None:
        self.state.gateways.discard(gateway)
        theirs = [job for job in self.state.jobs.values() if job.gateway == gateway]
        for job in theirs:
            self._runs.withdraw(job, "silence", now)
        logger.info("gateway-gone name=%s incarnation=%d cancelled=%d", *gateway, len(theirs))

    def _register(self, peer: Peer, message: WorkerReady, now: float) -> None:
        """A worker holds nothing on a fresh link: what an earlier link of it held runs again."""
        if peer in self._condemned or self._is_stale(peer, self.state.workers):
            return
        for former in [other for other in self.state.workers.values() if other.peer.name == peer.name]:
            self._lose(former, "it started anew", now)
        self.state.register(peer, message, now)
        logger.info("worker-ready name=%s incarnation=%d model=%s rows=%d", *peer, message.model, message.max_running)
        self._announce()

    def _lose(self, worker: Worker, why: str, now: float) -> None:
        held = self.state.remove(worker)
        self.counters.worker_deaths += 1
        logger.warning("worker-lost name=%s incarnation=%d held=%d reason=%r", *worker.peer, len(held), why)
        for job in held:
            self._runs.lost(job, now)

    def _condemn(self, worker: Worker, reason: str, now: float) -> None:
        self._condemned.add(worker.peer)
        self.outbox.kill(worker.peer, reason)
        self._lose(worker, reason, now)
        self._announce()

    def _announce(self) -> None:
        models = self.state.model_states()
        if models != self._announced:
            self._announced = models
            for gateway in self.state.gateways:
                self.outbox.send(gateway, Models(models))

    def _is_gone(self, peer: Peer) -> bool:
        """The supervisor's last word on it; a peer that the roster does not list yet is not gone."""
        status = self._roster.find(peer.name)
        if status is None or status.incarnation < peer.incarnation:
            return False
        return status.incarnation > peer.incarnation or status.state in GONE

    def _is_stale(self, peer: Peer, known: "set[Peer] | dict[Peer, Worker]") -> bool:
        newer = any(other.name == peer.name and other.incarnation > peer.incarnation for other in known)
        return newer or self._is_gone(peer)


def _failure(workers: Sequence[ActorStatus]) -> str | None:
    """Why a model has no future: all its workers were given up."""
    if not workers or any(worker.state != "failed" for worker in workers):
        return None
    return workers[0].detail or "its worker failed"

"""Starts the actors, watches them, restarts what died, and stops all in order.

One loop owns all state. Each child has a thread that waits for its exit: a killed process cannot say that it died, and
a heartbeat from a busy loop would lie.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple, assert_never

from pomona.config import Config
from pomona.runtime.actor import ActorSpec
from pomona.runtime.backoff import RestartPolicy
from pomona.runtime.control import (
    ActorKind,
    ActorName,
    ActorToSupervisor,
    Failed,
    Hello,
    Kill,
    Progress,
    Ready,
    Roster,
    Stop,
)
from pomona.runtime.mailbox import Peer, Reception, now
from pomona.runtime.placement import REPORTED, Handle, Placement, PlacementError
from pomona.runtime.supervised import Supervised
from pomona.runtime.wire import PROTOCOL, Decoder, WireError, replace

logger = logging.getLogger(__name__)

START_ORDER: tuple[ActorKind, ...] = ("cache", "scheduler", "worker", "gateway")
STOP_ORDER: tuple[ActorKind, ...] = ("gateway", "scheduler", "worker", "cache")
VITAL: tuple[ActorKind, ...] = ("scheduler", "gateway")
"""Kinds without which serving makes no sense."""

INWARD_GRACE_S = 2.0
"""Seconds to end for all but the gateway: once it is gone, no answer is running."""
OVERTIME_S = 5.0
"""Seconds beyond its grace after which an actor that was asked to stop is killed: time for its last words."""
REAPING_S = 1.0
"""Seconds to wait for each killed process where a bug ends the loop."""
LAST_WORDS_S = 0.5
"""Seconds to wait for a report that an exited actor has sent and that has not arrived yet."""


class Exited(NamedTuple):
    peer: Peer
    reason: str


class StopRequested(NamedTuple):
    pass


class Supervisor:
    """Runs `plans`, one specification for each actor, until it is asked to stop or serving makes no sense any more.

    `on_change` gets the roster on the supervisor's thread whenever it has changed. `endpoint` is where the control hub
    binds, `config.control_endpoint` by default; the specifications get the address that it really has. Whoever makes a
    supervisor closes it.
    """

    def __init__(
        self,
        placement: Placement,
        plans: Iterable[ActorSpec],
        config: Config,
        on_change: Callable[[Roster], None],
        *,
        policy: RestartPolicy | None = None,
        endpoint: str | None = None,
        overtime_s: float = OVERTIME_S,
    ) -> None:
        self._placement = placement
        self._config = config
        self._on_change = on_change
        self._overtime_s = overtime_s
        self._reception: Reception[ActorToSupervisor, Exited | StopRequested] = Reception(
            endpoint or config.control_endpoint, Decoder(ActorToSupervisor)
        )
        self._actors: dict[ActorName, Supervised] = {}
        for spec in sorted(plans, key=lambda spec: START_ORDER.index(spec.kind)):
            spec = replace(spec, control=self._reception.hub.endpoint)
            self._actors[spec.name] = Supervised(spec, config.ready_timeout_s, policy or RestartPolicy())
        self._handles: dict[ActorName, Handle] = {}
        self._threads: dict[Peer, threading.Thread] = {}
        self._sent = Roster(())
        self._stop_requests = 0
        self._phase: int | None = None
        """Index into STOP_ORDER of the kind that is being stopped; None while serving."""
        self._outcome: str | None = None

    @property
    def wakeup_fd(self) -> int:
        """For `signal.set_wakeup_fd`."""
        return self._reception.doorbell.wakeup_fd

    def request_stop(self) -> None:
        """Stop all in order; the second request kills. From any thread or signal handler."""
        self._reception.doorbell.post(StopRequested())

    def roster(self) -> Roster:
        return Roster(tuple(actor.status() for actor in self._actors.values()))

    def run(self) -> str | None:
        """Blocks until every actor has ended; returns None after a stop that was asked for, else why serving ended."""
        try:
            for actor in self._actors.values():
                self._start(actor)
            self._publish()
            while not all(actor.over for actor in self._actors.values()):
                self._reception.wait(self._timeout_s())
                self._hear()
                for event in self._reception.doorbell.drain():
                    match event:
                        case Exited():
                            self._exited(event)
                        case StopRequested():
                            self._stop_requested()
                        case _:
                            assert_never(event)
                self._act_on_time()
                self._judge()
                self._stop_next()
                self._publish()
            return self._outcome
        finally:
            self._kill_all()

    def _start(self, actor: Supervised) -> None:
        spec = actor.start(now())
        try:
            handle = self._placement.start(spec)
        except PlacementError as error:
            actor.ended(str(error), now())
            self._log_end(actor)
            return
        if handle.pid is not None:
            actor.pid = handle.pid
        self._handles[spec.name] = handle
        thread = threading.Thread(
            target=self._watch, args=(actor.peer, handle), name=f"exit of {spec.name}", daemon=True
        )
        self._threads[actor.peer] = thread
        thread.start()
        logger.info("started actor=%s incarnation=%d pid=%s", spec.name, spec.incarnation, handle.pid)

    def _watch(self, peer: Peer, handle: Handle) -> None:
        reason = handle.wait(None)
        self._reception.doorbell.post(Exited(peer, reason or "ended"))

    def _hear(self) -> None:
        """Take in all messages that have arrived."""
        while True:
            try:
                for peer, message in self._reception.hub.drain():
                    self._heard(peer, message)
                return
            except WireError as error:
                # From an actor of another version; its HELLO never comes, so the ready deadline ends it.
                logger.error("unreadable-message error=%r", str(error))

    def _heard(self, peer: Peer, message: ActorToSupervisor) -> None:
        actor = self._actors.get(ActorName(peer.name))
        if actor is None or actor.peer != peer or not actor.running:
            logger.info("stale-message actor=%s incarnation=%d", peer.name, peer.incarnation)
            return
        match message:
            case Hello():
                actor.hello(message.pid)
                if message.protocol != PROTOCOL:
                    reason = f"speaks protocol {message.protocol} instead of {PROTOCOL}; install one version of Pomona"
                    self._kill(actor, reason, final=True)
                else:
                    self._reception.hub.send(peer, self._sent)
            case Progress():
                actor.progress(message.text, now())
            case Ready():
                actor.ready(message.detail, now())
                logger.info("ready actor=%s incarnation=%d", peer.name, peer.incarnation)
            case Failed():
                actor.report(message.reason, message.final, now())
            case Kill():
                self._kill_asked(peer, message)
            case _:
                assert_never(message)

    def _kill_asked(self, peer: Peer, request: Kill) -> None:
        actor = self._actors.get(request.name)
        gone = actor is None or actor.spec.incarnation != request.incarnation or not actor.running
        # What has died a moment ago gives no sign of life either; its own exit is the true reason.
        if actor is None or gone or self._handles[actor.spec.name].wait(0.0) is not None:
            logger.info("kill-too-late actor=%s incarnation=%d", request.name, request.incarnation)
            return
        self._kill(actor, f"killed by the {peer.name}: {request.reason}")

    def _kill(self, actor: Supervised, reason: str, *, final: bool = False) -> None:
        logger.info("killing actor=%s incarnation=%d reason=%r", actor.spec.name, actor.spec.incarnation, reason)
        actor.kill(reason, now(), final=final)
        self._handles[actor.spec.name].kill()

    def _exited(self, event: Exited) -> None:
        self._threads.pop(event.peer).join()
        actor = self._actors[ActorName(event.peer.name)]
        if not actor.running:
            return  # it was abandoned, and has ended after all
        if event.reason == REPORTED:
            deadline = now() + LAST_WORDS_S
            while actor.reason is None and self._reception.wait_hub(deadline - now()):
                self._hear()
        actor.ended(event.reason, now())
        self._log_end(actor)

    def _log_end(self, actor: Supervised) -> None:
        logger.info("ended actor=%s state=%s reason=%r", actor.spec.name, actor.state, actor.detail)

    def _timeout_s(self) -> float | None:
        due = [actor.deadline for actor in self._actors.values() if actor.deadline is not None]
        due += [actor.restart_at for actor in self._actors.values() if actor.restart_at is not None]
        return max(0.0, min(due) - now()) if due else None

    def _act_on_time(self) -> None:
        for actor in self._actors.values():
            if actor.deadline is not None and actor.deadline <= now():
                if actor.killed and actor.state == "stopping":
                    actor.abandon()
                    self._outcome = self._outcome or f"{actor.spec.name}: {actor.detail}"
                else:
                    self._kill(actor, actor.overdue)
            if actor.restart_at is not None and actor.restart_at <= now():
                self._start(actor)

    def _judge(self) -> None:
        """End serving once it makes no sense any more."""
        if self._phase is not None:
            return
        for actor in self._actors.values():
            if actor.state == "failed" and actor.spec.kind in VITAL:
                self._outcome = f"{actor.spec.name}: {actor.detail}"
        workers = [actor for actor in self._actors.values() if actor.spec.kind == "worker"]
        if workers and all(worker.state == "failed" and not worker.was_ready for worker in workers):
            self._outcome = "; ".join(f"{worker.spec.name}: {worker.detail}" for worker in workers)
        if self._outcome is not None:
            self._phase = -1

    def _stop_requested(self) -> None:
        self._stop_requests += 1
        if self._phase is None:
            self._phase = -1
        if self._stop_requests > 1:
            for actor in self._actors.values():
                actor.stop(now())
                if actor.running:
                    self._kill(actor, "killed")

    def _stop_next(self) -> None:
        """Move on to the next kind as soon as nothing of the present one runs."""
        while self._phase is not None and self._phase < len(STOP_ORDER):
            if self._phase >= 0 and any(actor.running for actor in self._of(STOP_ORDER[self._phase])):
                return
            self._phase += 1
            if self._phase < len(STOP_ORDER):
                for actor in self._of(STOP_ORDER[self._phase]):
                    self._stop(actor)

    def _of(self, kind: ActorKind) -> list[Supervised]:
        return [actor for actor in self._actors.values() if actor.spec.kind == kind]

    def _stop(self, actor: Supervised) -> None:
        """What serves gets its grace; what is still starting holds nothing that a kill could lose."""
        serves = actor.state == "ready"
        answers = actor.spec.kind == "gateway" and self._outcome is None
        grace_s = self._config.stop_grace_s if answers else INWARD_GRACE_S
        actor.stop(now() + grace_s + self._overtime_s)
        if actor.running and not (serves and self._reception.hub.send(actor.peer, Stop(grace_s))):
            self._kill(actor, "stopped while starting")

    def _publish(self) -> None:
        roster = self.roster()
        if roster == self._sent:
            return
        self._sent = roster
        for actor in self._actors.values():
            if actor.greeted:
                self._reception.hub.send(actor.peer, roster)
        self._on_change(roster)

    def _kill_all(self) -> None:
        """Nothing outlives the loop, also where a bug ends it."""
        for actor in self._actors.values():
            if actor.running and actor.spec.name in self._handles:
                self._handles[actor.spec.name].kill()
        for thread in self._threads.values():
            thread.join(timeout=REAPING_S)

    def close(self) -> None:
        """Close the sockets, once `run` has returned."""
        self._reception.close()

"""A supervisor with real processes, run on a thread so that a test can watch and disturb it."""

import queue
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import zmq

from pomona.config import Config
from pomona.runtime.actor import ActorSpec
from pomona.runtime.backoff import RestartPolicy
from pomona.runtime.control import ActorKind, ActorName, ActorStatus, Roster
from pomona.runtime.mailbox import Hub, Peer, now
from pomona.runtime.placement import Handle, LocalPlacement, Placement
from pomona.runtime.supervisor import Supervisor
from pomona.runtime.wire import Decoder
from tests.support import actors

LIMIT_S = 30.0
QUICK = RestartPolicy(first_s=0.01)


def kind_of(name: str) -> ActorKind:
    kind = name.partition(":")[0]
    kinds: dict[str, ActorKind] = {
        "worker": "worker",
        "scheduler": "scheduler",
        "cache": "cache",
        "gateway": "gateway",
    }
    return kinds[kind]


class LateNews:
    """Local processes whose end the supervisor's waiting threads learn only once `told` is set."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.handles: dict[ActorName, Handle] = {}

    def start(self, spec: ActorSpec) -> Handle:
        self.handles[spec.name] = LocalPlacement().start(spec)
        return LateHandle(self.handles[spec.name], self.told)


class LateHandle:
    def __init__(self, handle: Handle, told: threading.Event) -> None:
        self.name, self.pid = handle.name, handle.pid
        self._handle = handle
        self._told = told

    def wait(self, timeout_s: float | None) -> str | None:
        reason = self._handle.wait(timeout_s)
        if timeout_s is None:
            assert self._told.wait(LIMIT_S)
        return reason

    def kill(self) -> None:
        self._handle.kill()


class System:
    def __init__(
        self,
        plan: Mapping[str, type],
        *,
        policy: RestartPolicy = QUICK,
        ready_timeout_s: float = LIMIT_S,
        stop_grace_s: float = 10.0,
        placement: Placement | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pomona")
        self.config = Config(
            runtime_folder=self._folder.name, ready_timeout_s=ready_timeout_s, stop_grace_s=stop_grace_s
        )
        # Leftovers of a killed server: they must not be in the way.
        for name in ("control", "talk"):
            Path(self._folder.name, name).touch()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.talk: Hub[actors.FromParrot] = Hub(
            self._context, actors.talk_endpoint(self.config), Decoder(actors.FromParrot)
        )
        self._changes: queue.SimpleQueue[Roster] = queue.SimpleQueue()
        self.history: list[Roster] = []
        specs = [
            ActorSpec(
                name=ActorName(name),
                kind=kind_of(name),
                target=actors.target(actor),
                control="",
                config=self.config,
                title=f"pomona: {name}",
                model=name.partition(":")[2] or None,
                environment=actors.ENVIRONMENT,
            )
            for name, actor in plan.items()
        ]
        self.supervisor = Supervisor(
            placement or LocalPlacement(), specs, self.config, self._changes.put, policy=policy, overtime_s=0.2
        )
        self._outcome: list[str | None] = []
        self._thread = threading.Thread(target=lambda: self._outcome.append(self.supervisor.run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.supervisor.request_stop()
        self.supervisor.request_stop()
        self._thread.join(LIMIT_S)
        self.supervisor.close()
        self.talk.close()
        self._context.term()
        self._folder.cleanup()

    def until(self, seen: Callable[[Roster], bool]) -> Roster:
        """The latest roster if it satisfies `seen`, else the first one from here on that does."""
        deadline = now() + LIMIT_S
        if self.history and seen(self.history[-1]):
            return self.history[-1]
        while True:
            try:
                roster = self._changes.get(timeout=max(0.0, deadline - now()))
            except queue.Empty:
                raise AssertionError(f"never seen; the last was {self.history[-1:]}") from None
            self.history.append(roster)
            if seen(roster):
                return roster

    def until_state(self, name: str, state: str, incarnation: int | None = None) -> ActorStatus:
        def seen(roster: Roster) -> bool:
            actor = roster.find(name)
            return actor is not None and actor.state == state and incarnation in (None, actor.incarnation)

        found = self.until(seen).find(name)
        assert found is not None
        return found

    def hear(self) -> tuple[Peer, actors.FromParrot]:
        assert self.talk.socket.poll(LIMIT_S * 1000), "no actor said anything"
        return next(self.talk.drain())

    def stop(self) -> None:
        self.supervisor.request_stop()

    def outcome(self) -> str | None:
        """What `run` returned; waits for it."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the supervisor did not come to its end"
        while not self._changes.empty():
            self.history.append(self._changes.get())
        return self._outcome[0]

    def states(self, name: str) -> list[str]:
        """Every state that the actor was seen in, in order, without repetitions."""
        seen: list[str] = []
        for roster in self.history:
            actor = roster.find(name)
            if actor is not None and seen[-1:] != [actor.state]:
                seen.append(actor.state)
        return seen

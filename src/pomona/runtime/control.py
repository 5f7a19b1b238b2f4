"""What the supervisor and its actors say to each other."""

from typing import Literal, NewType

from pomona.runtime.wire import Message, Part

ActorName = NewType("ActorName", str)
"""Unique among running actors: `scheduler`, `gateway`, `cache`, `worker:MODEL` or `worker:MODEL:REPLICA`."""

ActorKind = Literal["gateway", "scheduler", "worker", "cache"]
ActorState = Literal["starting", "ready", "stopping", "stopped", "dead", "failed"]
"""`dead`: its process ended and a restart is planned; `failed`: the supervisor gave up on it."""


class Hello(Message):
    """An actor's process is up; sent before the actor is constructed."""

    name: ActorName
    incarnation: int
    pid: int
    protocol: int


class Progress(Message):
    """What an actor that is not ready yet is doing, for people: `loading weights`; extends its ready deadline."""

    text: str


class Ready(Message):
    """The actor serves; `detail` is for people."""

    detail: str = ""


class Failed(Message):
    """The actor ends because of an error; `reason` names the thing and, where it is known, the mend."""

    reason: str
    final: bool = True
    """A restart will not mend it; False where the error was not expected, so that a restart is worth a try."""


class Kill(Message):
    """The scheduler asks for the end of an actor that makes no progress; it is restarted like any dead one."""

    name: ActorName
    incarnation: int
    reason: str


class ActorStatus(Part):
    name: ActorName
    kind: ActorKind
    incarnation: int
    state: ActorState
    pid: int | None = None
    detail: str = ""
    model: str | None = None


class Roster(Message):
    """All actors as the supervisor sees them; sent to every actor at each change, and to each at its HELLO.

    It is how an actor learns that a peer died (another incarnation, or a state that is not `ready`).
    """

    actors: tuple[ActorStatus, ...]

    def find(self, name: str) -> ActorStatus | None:
        return next((actor for actor in self.actors if actor.name == name), None)


class Stop(Message):
    """End in order: finish what can be finished within `grace_s` seconds, then return from `run`."""

    grace_s: float


ActorToSupervisor = Hello | Progress | Ready | Failed | Kill
SupervisorToActor = Roster | Stop

"""The only module that touches sockets: one ROUTER that binds (hub), DEALERs that connect (links).

Measured scars: a ROUTER drops silently without MANDATORY; a peer that comes back under a used identity is ignored
without HANDOVER; a DEALER keeps what it could not send and would deliver it to the next incarnation of its hub, so a
link is opened anew for each incarnation.
"""

import gc
import math
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

import zmq
import zmq.asyncio

from pomona.runtime.control import (
    ActorName,
    ActorToSupervisor,
    Failed,
    Hello,
    Kill,
    Progress,
    Ready,
    Roster,
    Stop,
    SupervisorToActor,
)
from pomona.runtime.doorbell import Doorbell
from pomona.runtime.wire import PROTOCOL, Decoder, Message, WireError, encode

HIGH_WATER_MARK = 100_000
"""Messages a socket holds per peer before a send is refused; admission bounds keep real traffic far below it."""

In = TypeVar("In")
Item = TypeVar("Item")


LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:")


class Peer(NamedTuple):
    """Who is at the other end of a hub: one incarnation of one actor."""

    name: str
    incarnation: int

    @property
    def identity(self) -> bytes:
        return f"{self.name}#{self.incarnation}".encode()

    @classmethod
    def parse(cls, identity: bytes) -> "Peer":
        """Raises WireError if that is not the identity of an actor."""
        try:
            name, _, incarnation = identity.decode().rpartition("#")
            return cls(name, int(incarnation))
        except ValueError as error:
            raise WireError(f"{identity!r} is not NAME#INCARNATION") from error


class Hub(Generic[In]):
    """A bound ROUTER; peers are addressed by `Peer`.

    Its endpoint is ipc in a private folder, inproc, or TCP on loopback: there are no keys on the wire. A socket file
    that a killed process left behind is replaced.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        inbound: Decoder[In],
        high_water_mark: int = HIGH_WATER_MARK,
    ) -> None:
        if endpoint.startswith("tcp://") and not endpoint.startswith(LOOPBACK):
            raise ValueError(f"{endpoint}: a hub without keys listens on loopback only; use ipc or tcp://127.0.0.1")
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.setsockopt(zmq.SNDHWM, high_water_mark)
        self.socket.setsockopt(zmq.RCVHWM, high_water_mark)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._inbound = inbound

    def send(self, peer: Peer, message: Message) -> bool:
        """True if the message is on its way; False if the peer is gone or has stopped reading."""
        try:
            self.socket.send_multipart([peer.identity, encode(message)], flags=zmq.DONTWAIT)
        except (zmq.Again, zmq.ZMQError) as error:
            if isinstance(error, zmq.Again) or error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        return True

    def drain(self) -> Iterator[tuple[Peer, In]]:
        """All messages that have arrived, without waiting.

        Raises WireError for one that cannot be read; the ones behind it are there for the next call.
        """
        while True:
            try:
                identity, *frames = self.socket.recv_multipart(flags=zmq.DONTWAIT)
            except zmq.Again:
                return
            yield Peer.parse(identity), self._inbound.decode(b"".join(frames))

    def close(self) -> None:
        self.socket.close()


class Reception(Generic[In, Item]):
    """What the supervisor listens to: a hub, and a doorbell for its threads and signal handlers."""

    def __init__(self, endpoint: str, inbound: Decoder[In]) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.doorbell: Doorbell[Item] = Doorbell()
        try:
            self.hub = Hub(self._context, endpoint, inbound)
        except BaseException:
            self.doorbell.close()
            self._context.destroy(linger=0)
            raise
        self._poller = zmq.Poller()
        self._poller.register(self.hub.socket, zmq.POLLIN)
        self._poller.register(self.doorbell, zmq.POLLIN)

    def wait(self, timeout_s: float | None) -> bool:
        """True if a message or a ring is there; False after `timeout_s` seconds (None: wait for ever)."""
        return bool(self._poller.poll(None if timeout_s is None else max(0, math.ceil(timeout_s * 1000))))

    def wait_hub(self, timeout_s: float) -> bool:
        """The same for messages alone."""
        return bool(self.hub.socket.poll(max(0, math.ceil(timeout_s * 1000))))

    def close(self) -> None:
        self.hub.close()
        self._context.term()
        self.doorbell.close()


def _dealer(socket: zmq.Socket[Any], endpoint: str, me: Peer, high_water_mark: int = HIGH_WATER_MARK) -> None:
    socket.setsockopt(zmq.IDENTITY, me.identity)
    socket.setsockopt(zmq.SNDHWM, high_water_mark)
    socket.setsockopt(zmq.RCVHWM, high_water_mark)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError:
        socket.close()
        raise


class Link(Generic[In]):
    """A DEALER connected to one incarnation of a hub."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        me: Peer,
        inbound: Decoder[In],
        high_water_mark: int = HIGH_WATER_MARK,
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        _dealer(self.socket, endpoint, me, high_water_mark)
        self._inbound = inbound

    def send(self, message: Message) -> bool:
        """True if the message is queued for the hub; False if the queue is full."""
        try:
            self.socket.send(encode(message), flags=zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def drain(self) -> Iterator[In]:
        while True:
            try:
                frame = self.socket.recv(flags=zmq.DONTWAIT)
            except zmq.Again:
                return
            yield self._inbound.decode(frame)

    def receive(self, timeout_s: float) -> In | None:
        """The next message, or None after `timeout_s` seconds."""
        if not self.socket.poll(max(0, round(timeout_s * 1000))):
            return None
        return self._inbound.decode(self.socket.recv())

    def close(self) -> None:
        self.socket.close()


class AsyncLink(Generic[In]):
    """A `Link` for an event loop."""

    def __init__(self, socket: "zmq.asyncio.Socket", inbound: Decoder[In]) -> None:
        self.socket = socket
        self._inbound = inbound

    async def send(self, message: Message) -> None:
        await self.socket.send(encode(message))

    async def receive(self) -> In:
        return self._inbound.decode(await self.socket.recv())

    def close(self) -> None:
        self.socket.close()


class Mailbox:
    """An actor's sockets: the control link to the supervisor, and the hubs and links that it opens.

    Closes everything it opened. `wait` returns as soon as any of its sockets can be read.
    """

    def __init__(self, me: Peer, control: str) -> None:
        self.me = me
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._open: list[Hub[object] | Link[object]] = []
        self.control: Link[SupervisorToActor] = self.link(control, Decoder(SupervisorToActor))
        self.roster = Roster(())
        self.stopping: Stop | None = None

    def hub(self, endpoint: str, inbound: Decoder[In]) -> Hub[In]:
        hub = Hub(self.context, endpoint, inbound)
        self._register(hub)
        return hub

    def link(self, endpoint: str, inbound: Decoder[In]) -> Link[In]:
        link = Link(self.context, endpoint, self.me, inbound)
        self._register(link)
        return link

    def _register(self, end: "Hub[In] | Link[In]") -> None:
        self._open.append(end)  # type: ignore[arg-type]  # the list only closes them
        self._poller.register(end.socket, zmq.POLLIN)

    def drop(self, end: "Hub[In] | Link[In]") -> None:
        """Close one hub or link; what it still held is lost."""
        self._poller.unregister(end.socket)
        self._open = [other for other in self._open if other is not end]
        end.close()

    def wait(self, timeout_s: float | None) -> bool:
        """True if something can be read; False after `timeout_s` seconds (None: wait for ever)."""
        return bool(self._poller.poll(None if timeout_s is None else max(0, math.ceil(timeout_s * 1000))))

    def tell(self, message: ActorToSupervisor) -> None:
        self.control.send(message)

    def hello(self, pid: int) -> None:
        self.tell(Hello(ActorName(self.me.name), self.me.incarnation, pid, PROTOCOL))

    def progress(self, text: str) -> None:
        self.tell(Progress(text))

    def ready(self, detail: str = "") -> None:
        """Say that the actor serves.

        What it has built by now stays, and collections of garbage leave it alone: going through a worker's libraries
        takes as long as several tokens.
        """
        gc.collect()
        gc.freeze()
        self.tell(Ready(detail))

    def failed(self, reason: str, *, final: bool = True) -> None:
        self.tell(Failed(reason, final))

    def kill(self, kill: Kill) -> None:
        self.tell(kill)

    def poll_control(self) -> bool:
        """Take in what the supervisor said: `roster` and `stopping` are up to date; True if the roster changed."""
        changed = False
        for message in self.control.drain():
            match message:
                case Roster():
                    self.roster, changed = message, True
                case Stop():
                    self.stopping = message
        return changed

    def close(self, linger_s: float = 0.5) -> None:
        """Close all; the last words to the supervisor, and to the peers of a hub, get `linger_s` seconds to leave."""
        for end in self._open:
            if end is self.control or isinstance(end, Hub):
                end.socket.setsockopt(zmq.LINGER, round(linger_s * 1000))
            end.close()
        self.context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncMailbox:
    """The same mailbox for an actor that lives on an event loop; made inside the loop, by the actor's `run`.

    `roster` and `stopping` of the mailbox below are kept up to date by `next_control`.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._context = zmq.asyncio.Context.shadow(mailbox.context)
        self._control = zmq.asyncio.Socket.from_socket(mailbox.control.socket)
        self._inbound: Decoder[SupervisorToActor] = Decoder(SupervisorToActor)

    async def next_control(self) -> SupervisorToActor:
        message = self._inbound.decode(await self._control.recv())
        match message:
            case Roster():
                self.mailbox.roster = message
            case Stop():
                self.mailbox.stopping = message
        return message

    def link(self, endpoint: str, inbound: Decoder[In]) -> AsyncLink[In]:
        """A new DEALER; whoever opens it closes it."""
        socket = self._context.socket(zmq.DEALER)
        _dealer(socket, endpoint, self.mailbox.me)
        return AsyncLink(socket, inbound)


def now() -> float:
    """Seconds on the clock that all deadlines use."""
    return time.monotonic()

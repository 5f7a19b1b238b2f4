"""A scheduler on real sockets, under a supervisor that the test plays; workers and clients live on the test's loop."""

import asyncio
import multiprocessing
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from itertools import repeat
from types import TracebackType
from typing import Self

import zmq

from pomona.config import Config, ModelConfig, SchedulerConfig
from pomona.runtime.actor import ActorSpec
from pomona.runtime.control import (
    ActorKind,
    ActorName,
    ActorState,
    ActorStatus,
    ActorToSupervisor,
    Hello,
    Kill,
    Ready,
    Roster,
    Stop,
)
from pomona.runtime.mailbox import AsyncLink, AsyncMailbox, Hub, Mailbox, Peer
from pomona.runtime.wire import Decoder, Message
from pomona.scheduler.actor import SchedulerActor
from pomona.scheduler.client import SchedulerClient
from pomona.workers.messages import (
    Assign,
    Cancel,
    Drain,
    EndTurn,
    RequestId,
    SchedulerToWorker,
    Stepped,
    TokenEvent,
    Turn,
    TurnEnded,
    WorkerReady,
    WorkerStats,
)
from tests.scheduler.rows import Rows

DEFAULTS = SchedulerConfig()
PATIENCE_S = 20.0
PACE_S = 0.002
"""Between the steps of a worker that goes on its own."""


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that other tasks or processes bring about."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


def serve(spec: ActorSpec) -> None:
    """The body of the scheduler's thread or process."""
    with Mailbox(Peer(spec.name, spec.incarnation), spec.control) as mailbox:
        mailbox.hello(os.getpid())
        SchedulerActor(spec, spec.config).run(mailbox)


class SocketWorker:
    """Speaks a worker's messages; steps when the test says so, or on its own after `go`."""

    def __init__(self, system: "System", peer: Peer, max_running: int, context: int) -> None:
        self.peer = peer
        self.rows = Rows(max_running)
        self.heard: list[SchedulerToWorker] = []
        self.heedless = False
        """It leaves cancels unanswered."""
        self._system = system
        self._ready = WorkerReady(peer.name.split(":")[1], max_running, context)
        self._mailbox = Mailbox(peer, system.hub.endpoint)
        self._loop = AsyncMailbox(self._mailbox)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._link: AsyncLink[SchedulerToWorker] = self._loop.link(
            system.config.scheduler_endpoint, Decoder(SchedulerToWorker)
        )

    async def start(self) -> None:
        await self._link.send(self._ready)
        self._reading = asyncio.create_task(self._read())

    async def reconnect(self) -> None:
        """To another incarnation of the scheduler."""
        await self._stop_reading()
        self._link.close()
        self.rows.clear()
        self._link = self._loop.link(self._system.config.scheduler_endpoint, Decoder(SchedulerToWorker))
        await self.start()

    async def _read(self) -> None:
        while True:
            message = await self._link.receive()
            match message:
                case Assign(request=assigned):
                    self.rows.assign(assigned)
                case Cancel(id=id):
                    if not self.heedless:
                        await self.drop(id)
                case Drain():
                    self.rows.clear()
                case Turn(number=number, seconds=seconds) if seconds is not None:
                    self._tasks.add(asyncio.create_task(self._end_turn(number, seconds)))
                case EndTurn(number=number):
                    await self.send(TurnEnded(number, 0.0))
                case Turn():
                    pass
            self.heard.append(message)

    async def drop(self, id: RequestId) -> None:
        await self._link.send(self.rows.cancel(id))

    async def step(self, width: int = 1) -> tuple[TokenEvent, ...]:
        events = self.rows.step(repeat(width))
        await self.send(Stepped(events, WorkerStats(running=len(self.rows.requests))))
        return events

    async def send(self, message: Message) -> None:
        await self._link.send(message)

    def go(self) -> None:
        self._tasks.add(asyncio.create_task(self._go()))

    async def _go(self) -> None:
        while True:
            if self.rows.requests:
                await self.step()
            await asyncio.sleep(PACE_S)

    async def _end_turn(self, number: int, seconds: float) -> None:
        """It steps when the test says so, whoever has the turn; but it keeps no other one waiting."""
        await asyncio.sleep(seconds)
        await self.send(TurnEnded(number, seconds))

    def assigned(self) -> list[RequestId]:
        return [message.request.id for message in self.heard if isinstance(message, Assign)]

    def cancelled(self) -> list[RequestId]:
        return [message.id for message in self.heard if isinstance(message, Cancel)]

    async def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
            self._reading = None

    async def die(self) -> None:
        """At once, without a word."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()
        await self._stop_reading()
        self._link.close()
        self._mailbox.close(linger_s=0)


class Gateway:
    """A client with the task that reads for it."""

    def __init__(self, system: "System", peer: Peer, patience_s: float) -> None:
        self.peer = peer
        self._mailbox = Mailbox(peer, system.hub.endpoint)
        self.client = SchedulerClient(
            AsyncMailbox(self._mailbox), system.config.scheduler_endpoint, patience_s=patience_s
        )
        self._running = asyncio.create_task(self.client.run())

    async def die(self) -> None:
        self._running.cancel()
        await asyncio.wait({self._running})
        self._mailbox.close(linger_s=0)
        if not self._running.cancelled():
            self._running.result()


class System:
    def __init__(self, *, scheduler: SchedulerConfig = DEFAULTS, models: tuple[str, ...] = ("m",)) -> None:
        self.folder = tempfile.mkdtemp(prefix="pm-")
        self.config = Config(
            runtime_folder=self.folder,
            scheduler=scheduler,
            models=tuple(ModelConfig(id=id, path="-") for id in models),
        )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.hub: Hub[ActorToSupervisor] = Hub(
            self._context, f"ipc://{self.folder}/control", Decoder(ActorToSupervisor)
        )
        self.heard: list[tuple[Peer, ActorToSupervisor]] = []
        self.statuses: dict[str, ActorStatus] = {}
        self.workers: list[SocketWorker] = []
        self.gateways: list[Gateway] = []
        self.incarnation = -1
        self.body: threading.Thread | multiprocessing.process.BaseProcess | None = None

    # the supervisor's part

    def listen(self) -> list[tuple[Peer, ActorToSupervisor]]:
        self.heard.extend(self.hub.drain())
        return self.heard

    def kills(self) -> list[Kill]:
        return [message for _, message in self.listen() if isinstance(message, Kill)]

    async def declare(
        self,
        name: str,
        incarnation: int,
        state: ActorState,
        kind: ActorKind,
        *,
        model: str | None = None,
        detail: str = "",
    ) -> None:
        """Change one actor's status and tell everybody."""
        self.statuses[name] = ActorStatus(ActorName(name), kind, incarnation, state, detail=detail, model=model)
        roster = Roster(tuple(self.statuses.values()))
        self.hub.send(Peer("scheduler", self.incarnation), roster)
        for gateway in self.gateways:
            await gateway.client.on_roster(roster)

    async def boot(self, *, process: bool = False) -> None:
        """Start the next incarnation of the scheduler, as a thread or a process, and wait until it is ready."""
        self.incarnation += 1
        peer = Peer("scheduler", self.incarnation)
        spec = ActorSpec(
            name=ActorName("scheduler"),
            kind="scheduler",
            target="pomona.scheduler.actor:SchedulerActor",
            control=self.hub.endpoint,
            config=self.config,
            title="scheduler",
            incarnation=self.incarnation,
        )
        if process:
            self.body = multiprocessing.get_context("spawn").Process(target=serve, args=(spec,))
        else:
            self.body = threading.Thread(target=serve, args=(spec,))
        self.body.start()
        await until(lambda: any(who == peer and isinstance(what, Hello) for who, what in self.listen()))
        self.hub.send(peer, Roster(tuple(self.statuses.values())))
        await until(lambda: any(who == peer and isinstance(what, Ready) for who, what in self.listen()))
        await self.declare("scheduler", self.incarnation, "ready", "scheduler")

    async def kill(self) -> None:
        """kill -9 of the scheduler's process."""
        assert isinstance(self.body, multiprocessing.process.BaseProcess)
        self.body.kill()
        await asyncio.to_thread(self.body.join)
        self.body.close()
        self.body = None
        await self.declare("scheduler", self.incarnation, "dead", "scheduler")

    def stop(self, grace_s: float) -> None:
        self.hub.send(Peer("scheduler", self.incarnation), Stop(grace_s))

    async def ended(self) -> None:
        """Wait for the scheduler to return."""
        assert self.body is not None
        await asyncio.to_thread(self.body.join, PATIENCE_S)
        assert not self.body.is_alive()

    # the others

    async def worker(
        self, name: str = "worker:m", incarnation: int = 0, *, max_running: int = 4, context: int = 100
    ) -> SocketWorker:
        worker = SocketWorker(self, Peer(name, incarnation), max_running, context)
        self.workers.append(worker)
        await self.declare(name, incarnation, "ready", "worker", model=name.split(":")[1])
        await worker.start()
        return worker

    async def gateway(self, name: str = "gateway", incarnation: int = 0, *, patience_s: float = 30.0) -> Gateway:
        gateway = Gateway(self, Peer(name, incarnation), patience_s)
        self.gateways.append(gateway)
        await self.declare(name, incarnation, "ready", "gateway")
        await until(lambda: gateway.client.connected or self.body is None)
        return gateway

    async def lose_worker(self, worker: SocketWorker) -> None:
        """It dies and the supervisor says so."""
        self.workers.remove(worker)
        await worker.die()
        await self.declare(*worker.peer, "dead", "worker", model=worker.peer.name.split(":")[1])

    async def lose_gateway(self, gateway: Gateway) -> None:
        self.gateways.remove(gateway)
        await gateway.die()
        await self.declare(*gateway.peer, "dead", "gateway")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for gateway in self.gateways:
            await gateway.die()
        for worker in self.workers:
            await worker.die()
        if self.body is not None:
            self.stop(0)
            await self.ended()
        self.hub.close()
        self._context.term()
        shutil.rmtree(self.folder)

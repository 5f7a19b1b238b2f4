"""A cache actor over real sockets, with the supervisor's end of its control link in the hands of the test."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import zmq

from pomona.cache.actor import TICK_S, CacheActor
from pomona.cache.client import CacheClient
from pomona.cache.disk import BlockFiles
from pomona.config import CacheConfig, Config
from pomona.runtime.actor import ActorSpec
from pomona.runtime.control import ActorName, ActorState, ActorStatus, ActorToSupervisor, Ready, Roster, Stop
from pomona.runtime.host import pack
from pomona.runtime.mailbox import Hub, Mailbox, Peer, now
from pomona.runtime.wire import Decoder, replace

DEADLINE_S = 20.0


def cache_config(folder: Path, runtime: Path | str, **settings: object) -> Config:
    cache = replace(CacheConfig(max_bytes=1 << 30, min_free_bytes=0), **settings)
    return Config(cache=cache, cache_folder=str(folder), runtime_folder=str(runtime))


def until(done: Callable[[], bool], what: str) -> None:
    """Poll until `done()`, or fail after a deadline."""
    deadline, tick = now() + DEADLINE_S, threading.Event()
    while not done():
        assert now() < deadline, f"waited in vain for {what}"
        tick.wait(0.005)


class CacheHouse:
    """Start and stop the actor at will; the folder and the sockets' folder stay."""

    def __init__(
        self, folder: Path, files: BlockFiles | None = None, tick_s: float = TICK_S, **settings: object
    ) -> None:
        self.runtime = Path(tempfile.mkdtemp(prefix="pomona-"))  # short, since socket paths are bounded
        self.config = cache_config(folder, self.runtime, **settings)
        self.files = files
        self.tick_s = tick_s
        self.incarnation = 0
        self.workers: tuple[ActorStatus, ...] = (worker_status("worker:m", 1),)
        self.detail = ""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._hub: Hub[ActorToSupervisor] = Hub(
            self._context, f"ipc://{self.runtime}/control", Decoder(ActorToSupervisor)
        )
        self._thread: threading.Thread | None = None
        self._errors: list[BaseException] = []

    @property
    def control(self) -> str:
        return self._hub.endpoint

    def spec(self) -> ActorSpec:
        return ActorSpec(
            name=ActorName("cache"),
            kind="cache",
            target="pomona.cache.actor:CacheActor",
            control=self.control,
            config=self.config,
            title="pomona: cache",
            incarnation=self.incarnation,
        )

    def start(self) -> Self:
        """A new incarnation in a thread; returns once it is ready."""
        self.incarnation += 1
        self._thread = threading.Thread(target=self._run, args=(self.spec(),), daemon=True)
        self._thread.start()
        self.wait_ready()
        self.send(self.roster())
        return self

    def _run(self, spec: ActorSpec) -> None:
        try:
            with Mailbox(Peer(spec.name, spec.incarnation), spec.control) as mailbox:
                CacheActor(spec, spec.config, self.files, self.tick_s).run(mailbox)
        except BaseException as error:
            self._errors.append(error)
            raise

    def wait_ready(self) -> None:
        deadline = now() + DEADLINE_S
        while True:
            assert self._hub.socket.poll(max(0, round(1000 * (deadline - now())))), "the cache actor never got ready"
            for peer, message in self._hub.drain():
                if isinstance(message, Ready) and peer.incarnation == self.incarnation:
                    self.detail = message.detail
                    return

    def roster(self, state: ActorState = "ready") -> Roster:
        cache = ActorStatus(ActorName("cache"), "cache", self.incarnation, state)
        return Roster((cache, *self.workers))

    def send(self, message: Roster | Stop) -> None:
        assert self._hub.send(Peer("cache", self.incarnation), message)

    def stop(self, grace_s: float = 2.0) -> None:
        if self._thread is not None:
            self.send(Stop(grace_s))
            self._thread.join(DEADLINE_S)
            assert not self._thread.is_alive()
            assert not self._errors
            self._thread = None

    @contextlib.contextmanager
    def client(self, name: str = "worker:m", incarnation: int = 1, timeout_s: float = 5.0) -> Iterator[CacheClient]:
        client = CacheClient(self.config.cache_endpoint, Peer(name, incarnation), timeout_s)
        client.on_roster(self.roster())
        try:
            yield client
        finally:
            client.close()

    def close(self) -> None:
        try:
            self.stop()
        finally:
            self._hub.close()
            self._context.term()
            shutil.rmtree(self.runtime)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class CacheProcess:
    """The actor in a process of its own, as the supervisor starts it."""

    def __init__(self, house: CacheHouse) -> None:
        house.incarnation += 1
        self._process = subprocess.Popen([sys.executable, "-m", "pomona.runtime.host"], stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        self._process.stdin.write(pack(house.spec()))
        self._process.stdin.flush()
        house.wait_ready()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=DEADLINE_S)


def worker_status(name: str, incarnation: int, state: ActorState = "ready") -> ActorStatus:
    return ActorStatus(ActorName(name), "worker", incarnation, state)

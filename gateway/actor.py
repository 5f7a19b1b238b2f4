"""The gateway's process: an HTTP server on the inherited socket, a client of the scheduler."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import assert_never

import uvicorn
import uvloop
from starlette.types import ASGIApp

from pomona.config import Config
from pomona.gateway.app import create_app
from pomona.gateway.cache_figures import CacheFigures
from pomona.gateway.catalog import Catalog
from pomona.gateway.closing import Closing
from pomona.gateway.grammar_check import GrammarChecker
from pomona.gateway.metrics import Metrics
from pomona.gateway.services import Services
from pomona.gateway.stored import StoredResponses
from pomona.runtime.actor import ActorFailure, ActorSpec
from pomona.runtime.control import Roster, Stop
from pomona.runtime.mailbox import AsyncMailbox, Mailbox, Peer, now
from pomona.scheduler.client import SchedulerClient

LAST_WORDS_S = 2.0
"""Seconds that cut answers have to tell their clients; then connections are closed."""

IDLE_CONNECTION_S = 75
"""Seconds that an idle connection is kept for its client's next request."""


class GatewayActor:
    def __init__(self, spec: ActorSpec, config: Config) -> None:
        self._spec = spec
        self._config = config

    def run(self, mailbox: Mailbox) -> None:
        """Serve until the supervisor says stop. Raises ActorFailure if there is no socket to serve on."""
        if not self._spec.inherit:
            raise ActorFailure(f"{self._spec.name} got no listening socket: the launcher must pass it in `inherit`")
        with (
            socket.socket(fileno=self._spec.inherit[0]) as listening,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(self._serve(mailbox, listening))

    async def _serve(self, mailbox: Mailbox, listening: socket.socket) -> None:
        control = AsyncMailbox(mailbox)
        client = SchedulerClient(control, self._config.scheduler_endpoint)
        await client.on_roster(mailbox.roster)
        cache = None
        if self._config.cache.enabled:
            me = Peer(self._spec.name, self._spec.incarnation)
            cache = CacheFigures(self._config.cache_endpoint, me, lambda: mailbox.roster)
        grammars = GrammarChecker()
        services = Services(
            config=self._config,
            source=client,
            catalog=Catalog(self._config),
            closing=Closing(),
            metrics=Metrics(),
            stored=StoredResponses(),
            grammars=grammars,
            roster=lambda: mailbox.roster,
            started=now(),
            cache=cache,
        )
        server = HttpServer(create_app(services), listening, on_started=lambda: mailbox.ready(_where(listening)))
        tasks = [
            asyncio.create_task(client.run(), name="scheduler client"),
            asyncio.create_task(services.catalog.warm(), name="warm-up"),
            asyncio.create_task(server.run(), name="http server"),
        ]
        stop = asyncio.create_task(_follow(control, client.on_roster), name="control")
        try:
            grace_s = await _first_failure_or(stop, tasks[:1] + tasks[2:])
            await server.stop(grace_s, services.closing)
        finally:
            for task in (stop, *tasks):
                task.cancel()
            await asyncio.gather(stop, *tasks, return_exceptions=True)
            services.catalog.close()
            await grammars.close()
            if cache is not None:
                cache.close()


class HttpServer:
    """uvicorn on a given socket; signals are the supervisor's business."""

    def __init__(self, app: ASGIApp, listening: socket.socket, on_started: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE_CONNECTION_S,
        )
        self._server = _Server(config, on_started)
        self._listening = listening
        self._ended = asyncio.Event()

    async def run(self) -> None:
        try:
            await self._server.serve(sockets=[self._listening])
        finally:
            self._ended.set()

    async def stop(self, grace_s: float, closing: Closing) -> None:
        """Accept nothing more; running answers have `grace_s` seconds, then they end with an error."""
        closing.close()
        self._server.should_exit = True
        if not await self._ends_within(grace_s):
            closing.cut()
            if not await self._ends_within(LAST_WORDS_S):
                self._server.force_exit = True
                await self._ends_within(LAST_WORDS_S)

    async def _ends_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._ended.wait(), seconds)
        except TimeoutError:
            return False
        return True


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()


async def _follow(control: AsyncMailbox, on_roster: Callable[[Roster], Awaitable[None]]) -> float:
    """Passes rosters on until the supervisor says stop; returns the grace in seconds."""
    while True:
        message = await control.next_control()
        match message:
            case Roster():
                await on_roster(message)
            case Stop(grace_s):
                return grace_s
            case _:
                assert_never(message)


async def _first_failure_or(stop: "asyncio.Task[float]", tasks: "list[asyncio.Task[None]]") -> float:
    """The grace once stop is said; a task that ends before that ends the actor, loudly."""
    done, _ = await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task in done:
            task.result()
            raise RuntimeError(f"the gateway's {task.get_name()} ended by itself")
    return stop.result()


def _where(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

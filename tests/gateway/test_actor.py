"""The gateway's process body over real sockets; the test plays the supervisor and the scheduler."""

import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
import zmq

from pomona.config import Config, ModelConfig
from pomona.gateway.actor import GatewayActor
from pomona.runtime.actor import ActorFailure, ActorSpec
from pomona.runtime.control import ActorName, ActorStatus, ActorToSupervisor, Ready, Roster, Stop
from pomona.runtime.mailbox import Hub, Mailbox, Peer
from pomona.runtime.wire import Decoder, replace
from pomona.scheduler.messages import (
    CancelRequest,
    Events,
    GatewayHello,
    GatewayToScheduler,
    Models,
    ModelState,
    Submit,
)
from pomona.workers.messages import Delta, Finish, TokenEvent, Usage

T = TypeVar("T")

WAIT_S = 30.0
GATEWAY = Peer("gateway", 0)
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


class System:
    """A gateway in a thread, and the two peers that it talks to."""

    def __init__(self, config: Config) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.supervisor: Hub[ActorToSupervisor] = Hub(
            self._context, f"ipc://{config.runtime_folder}/control", Decoder(ActorToSupervisor)
        )
        self.scheduler: Hub[GatewayToScheduler] = Hub(
            self._context, config.scheduler_endpoint, Decoder(GatewayToScheduler)
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.spec = ActorSpec(
            name=ActorName("gateway"),
            kind="gateway",
            target="pomona.gateway.actor:GatewayActor",
            control=self.supervisor.endpoint,
            config=config,
            title="pomona: gateway",
            inherit=(os.dup(self.listener.fileno()),),
        )
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="gateway")
        self.thread.start()

    def _run(self) -> None:
        try:
            with Mailbox(GATEWAY, self.spec.control) as mailbox:
                mailbox.hello(os.getpid())
                GatewayActor(self.spec, self.spec.config).run(mailbox)
        finally:
            self.ended.set()

    def hear(self, *kinds: type) -> ActorToSupervisor | GatewayToScheduler:
        """The next message of one of these kinds, from either hub; others are passed over."""
        return self.until(lambda: next((m for m in self._drain() if isinstance(m, kinds)), None))

    def _drain(self) -> Iterator[ActorToSupervisor | GatewayToScheduler]:
        for _, told in self.supervisor.drain():
            yield told
        for _, asked in self.scheduler.drain():
            yield asked

    def until(self, found: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if (value := found()) is not None:
                return value
            zmq.select([self.supervisor.socket, self.scheduler.socket], [], [], 0.02)
        raise AssertionError("it did not come in time")

    def roster(self, state: str) -> None:
        scheduler = ActorStatus(ActorName("scheduler"), "scheduler", 0, state, os.getpid())  # type: ignore[arg-type]
        assert self.supervisor.send(GATEWAY, Roster((scheduler,)))

    def stop(self, grace_s: float) -> None:
        assert self.supervisor.send(GATEWAY, Stop(grace_s))

    def close(self) -> None:
        if not self.ended.is_set():
            self.stop(0.0)
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        self.supervisor.close()
        self.scheduler.close()
        self._context.term()
        self.listener.close()


@pytest.fixture
def system(model_folder: Path) -> Iterator[System]:
    folder = tempfile.mkdtemp(prefix="pg")  # short: a socket path has 104 bytes on macOS
    running = System(Config(models=(ModelConfig(id="tiny", path=str(model_folder)),), runtime_folder=folder))
    try:
        running.hear(Ready)
        yield running
    finally:
        running.close()
        shutil.rmtree(folder)


def connect(system: System) -> None:
    system.roster("ready")
    system.hear(GatewayHello)
    system.scheduler.send(GATEWAY, Models((ModelState(id="tiny", state="ready", context=256, workers=1),)))
    system.until(lambda: httpx.get(f"{system.url}/health/ready").status_code == 200 or None)


def ask(system: System) -> tuple[threading.Thread, list[httpx.Response], Submit]:
    """A request under way, and what the scheduler heard of it."""
    answers: list[httpx.Response] = []

    def post() -> None:
        answers.append(httpx.post(f"{system.url}/v1/chat/completions", json=ASK, timeout=WAIT_S))

    thread = threading.Thread(target=post)
    thread.start()
    submit = system.hear(Submit)
    assert isinstance(submit, Submit)
    return thread, answers, submit


def answer(system: System, submit: Submit) -> None:
    request = submit.request
    finish = Finish(reason="stop", usage=Usage(len(request.prompt), 1))
    event = TokenEvent(id=request.id, position=0, tokens=(9,), deltas=(Delta("content", "Yes."),), finish=finish)
    assert system.scheduler.send(GATEWAY, Events((event,)))


def test_it_serves_on_the_inherited_socket_and_answers_through_the_scheduler(system: System) -> None:
    waiting = httpx.get(f"{system.url}/health/ready")
    assert waiting.status_code == 503
    assert "scheduler" in waiting.json()["reason"]
    connect(system)
    thread, answers, submit = ask(system)
    answer(system, submit)
    thread.join(WAIT_S)
    assert answers[0].json()["choices"][0]["message"]["content"] == "Yes."
    assert httpx.get(f"{system.url}/admin/status").json()["actors"][0]["name"] == "scheduler"


def test_stop_waits_for_answers_and_then_returns(system: System) -> None:
    connect(system)
    thread, answers, submit = ask(system)
    system.stop(WAIT_S)
    answer(system, submit)
    thread.join(WAIT_S)
    assert answers[0].status_code == 200
    assert system.ended.wait(WAIT_S)


def test_stop_ends_what_outlasts_the_grace_and_cancels_it(system: System) -> None:
    connect(system)
    thread, answers, submit = ask(system)
    system.stop(0.1)
    cancelled = system.hear(CancelRequest)
    thread.join(WAIT_S)
    assert cancelled == CancelRequest(submit.request.id)
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["code"] == "stopping"
    assert system.ended.wait(WAIT_S)


def test_a_scheduler_that_goes_away_shows_in_health_and_metrics(system: System) -> None:
    connect(system)
    system.roster("dead")
    system.until(lambda: httpx.get(f"{system.url}/health/ready").status_code == 503 or None)
    metrics = httpx.get(f"{system.url}/metrics").text
    assert "pomona_scheduler_up 0.0" in metrics
    assert "pomona_gateway_http_in_flight 1.0" in metrics


def test_a_gateway_without_a_socket_says_so(system: System) -> None:
    actor = GatewayActor(replace(system.spec, inherit=()), system.spec.config)
    with (
        Mailbox(Peer("gateway", 1), system.spec.control) as mailbox,
        pytest.raises(ActorFailure, match="listening socket"),
    ):
        actor.run(mailbox)

"""What every placement must do; the supervisor and the actors rely on nothing else."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pomona.config import Config
from pomona.runtime.actor import ActorSpec
from pomona.runtime.control import ActorName, ActorToSupervisor, Failed, Hello, Ready, Stop
from pomona.runtime.mailbox import Hub, Peer, now
from pomona.runtime.placement import REPORTED, Handle, LocalPlacement, Placement
from pomona.runtime.wire import PROTOCOL, Decoder
from tests.support import actors

LIMIT_S = 60.0
NAME = ActorName("worker:parrot")


class Bench:
    """A placement under test with the two hubs that its actors talk to."""

    def __init__(self, placement: Placement, folder: Path, control: str) -> None:
        self.placement = placement
        self.config = Config(runtime_folder=str(folder))
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.control: Hub[ActorToSupervisor] = Hub(self.context, control, Decoder(ActorToSupervisor))
        self.talk: Hub[actors.FromParrot] = Hub(
            self.context, actors.talk_endpoint(self.config), Decoder(actors.FromParrot)
        )
        self.handles: list[Handle] = []

    def start(self, actor: type, incarnation: int = 0, **environment: str) -> Handle:
        handle = self.placement.start(
            ActorSpec(
                name=NAME,
                kind="worker",
                target=actors.target(actor),
                control=self.control.endpoint,
                config=self.config,
                title="pomona: worker parrot",
                incarnation=incarnation,
                environment={**actors.ENVIRONMENT, **environment},
            )
        )
        self.handles.append(handle)
        return handle

    def hear(self) -> tuple[Peer, ActorToSupervisor]:
        self._await_word(self.control)
        return next(self.control.drain())

    def listen(self) -> actors.FromParrot:
        self._await_word(self.talk)
        return next(self.talk.drain())[1]

    def _await_word(self, hub: Hub[actors.FromParrot] | Hub[ActorToSupervisor]) -> None:
        until = now() + LIMIT_S
        while not hub.socket.poll(250):
            assert now() < until, "the actor said nothing"
            ended = self.handles[-1].wait(0.0)
            assert ended is None or hub.socket.poll(250), f"the actor ended without a word: {ended}"

    def greet(self, incarnation: int = 0) -> int:
        """Take HELLO and READY; returns the actor's pid."""
        peer, hello = self.hear()
        assert isinstance(hello, Hello)
        assert peer == Peer(NAME, incarnation)
        assert (hello.name, hello.incarnation, hello.protocol) == (NAME, incarnation, PROTOCOL)
        assert self.hear() == (peer, Ready("talking"))
        first = self.listen()
        assert isinstance(first, actors.Said)
        assert (first.text, first.incarnation, first.pid) == ("ready", incarnation, hello.pid)
        return hello.pid

    def close(self) -> None:
        for handle in self.handles:
            handle.kill()
            assert handle.wait(LIMIT_S) is not None
        self.control.close()
        self.talk.close()
        self.context.term()


@pytest.fixture(scope="module", params=["local", "ray"])
def placement(request: pytest.FixtureRequest) -> Iterator[Placement]:
    if request.param == "local":
        yield LocalPlacement()
        return
    ray = pytest.importorskip("ray", reason="the extra pomona[ray] is not installed")
    from pomona.runtime.ray_placement import RayPlacement

    yield RayPlacement()
    ray.shutdown()


@pytest.fixture
def bench(placement: Placement) -> Iterator[Bench]:
    control = "ipc://{}/control" if isinstance(placement, LocalPlacement) else "tcp://127.0.0.1:*"
    with tempfile.TemporaryDirectory(prefix="pomona") as folder:
        bench = Bench(placement, Path(folder), control.format(folder))
        yield bench
        bench.close()


def test_an_actor_says_hello_then_ready_and_talks_from_its_main_thread(bench: Bench) -> None:
    handle = bench.start(actors.Parrot)
    assert handle.name == NAME
    pid = bench.greet()
    assert handle.pid in (pid, None)
    assert bench.talk.send(Peer(NAME, 0), actors.Say("polly"))
    assert bench.listen() == actors.Said("polly", 0, pid, True)
    assert handle.wait(0.0) is None


def test_an_actor_that_is_asked_to_stop_ends_with_status_0(bench: Bench) -> None:
    handle = bench.start(actors.Parrot)
    bench.greet()
    assert bench.control.send(Peer(NAME, 0), Stop(1.0))
    assert handle.wait(LIMIT_S) == "exit status 0"
    assert handle.wait(0.0) == "exit status 0", "the reason can be asked for again"


def test_an_exit_without_a_word_is_noticed_at_once(bench: Bench) -> None:
    handle = bench.start(actors.Parrot)
    bench.greet()
    assert bench.talk.send(Peer(NAME, 0), actors.Quit(7))
    asked = now()
    assert handle.wait(LIMIT_S) is not None
    assert now() - asked < 5.0


def test_a_constructor_that_raises_is_reported_in_one_line(bench: Bench) -> None:
    handle = bench.start(actors.Unbuildable)
    assert isinstance(bench.hear()[1], Hello)
    assert bench.hear()[1] == Failed("RuntimeError: the constructor raised", final=False)
    assert handle.wait(LIMIT_S) == REPORTED


def test_a_failure_that_the_actor_declares_is_final(bench: Bench) -> None:
    handle = bench.start(actors.Misconfigured)
    assert isinstance(bench.hear()[1], Hello)
    assert bench.hear()[1] == Failed("the folder is empty; fill it", final=True)
    assert handle.wait(LIMIT_S) == REPORTED


def test_a_target_that_does_not_exist_is_reported(bench: Bench) -> None:
    handle = bench.placement.start(
        ActorSpec(
            name=NAME,
            kind="worker",
            target="pomona.no_such_module:Nothing",
            control=bench.control.endpoint,
            config=bench.config,
            title="pomona: worker parrot",
            environment=actors.ENVIRONMENT,
        )
    )
    bench.handles.append(handle)
    assert isinstance(bench.hear()[1], Hello)
    _, failed = bench.hear()
    assert isinstance(failed, Failed)
    assert "pomona.no_such_module" in failed.reason
    assert handle.wait(LIMIT_S) == REPORTED


def test_a_killed_actor_starts_again_as_the_next_incarnation(bench: Bench) -> None:
    first = bench.start(actors.Parrot)
    old = bench.greet()
    first.kill()
    assert first.wait(LIMIT_S) is not None
    first.kill()  # once more does no harm
    bench.start(actors.Parrot, incarnation=1)
    new = bench.greet(incarnation=1)
    assert new != old
    assert bench.talk.send(Peer(NAME, 1), actors.Say("again"))
    assert bench.listen() == actors.Said("again", 1, new, True)


def test_the_specification_adds_to_the_environment(bench: Bench) -> None:
    bench.start(actors.Environment, POMONA_TEST_WORD="cracker")
    said = bench.listen()
    assert isinstance(said, actors.Said)
    assert said.text == "cracker"

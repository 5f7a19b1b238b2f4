"""The process of an actor: its lifeline, its signals, its title, and what a terminal sees of it."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from pomona.config import Config
from pomona.runtime import host, lifeline
from pomona.runtime.actor import ActorSpec
from pomona.runtime.control import ActorName, ActorToSupervisor, Failed, Hello, Ready, Stop
from pomona.runtime.mailbox import Hub, Peer, now
from pomona.runtime.wire import Decoder, replace
from tests.support import actors

LIMIT_S = 30.0
ME = Peer("worker:a", 0)


class Control:
    """A supervisor's hub, and actors' processes that stand under the test's own control."""

    def __init__(self, folder: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.hub: Hub[ActorToSupervisor] = Hub(self._context, f"ipc://{folder}/control", Decoder(ActorToSupervisor))
        self.spec = ActorSpec(
            name=ActorName(ME.name),
            kind="worker",
            target=actors.target(actors.Quiet),
            control=self.hub.endpoint,
            config=Config(runtime_folder=str(folder)),
            title="pomona: worker a",
            model="a",
        )
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, actor: type, **environment: str) -> "subprocess.Popen[bytes]":
        process = self.start_bare(**environment)
        assert process.stdin is not None
        process.stdin.write(host.pack(replace(self.spec, target=actors.target(actor))))
        process.stdin.flush()
        return process

    def start_bare(self, **environment: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pomona.runtime.host"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **actors.ENVIRONMENT, **environment},
        )
        self._processes.append(process)
        return process

    def hear(self) -> ActorToSupervisor:
        assert self.hub.socket.poll(LIMIT_S * 1000), "the actor said nothing"
        return next(self.hub.drain())[1]

    def greet(self) -> None:
        assert isinstance(self.hear(), Hello)
        assert self.hear() == Ready()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate(timeout=LIMIT_S)
        self.hub.close()
        self._context.term()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    control = Control(tmp_path)
    yield control
    control.close()


def cut_lifeline(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None


def stderr(process: "subprocess.Popen[bytes]") -> str:
    return process.communicate(timeout=LIMIT_S)[1].decode()


def test_a_specification_crosses_the_pipe_unchanged(control: Control) -> None:
    spec = replace(control.spec, environment={"A": "b"}, inherit=(5, 6), incarnation=3)
    reader, writer = os.pipe()
    os.write(writer, host.pack(spec))
    assert host.read_spec(reader) == spec
    os.write(writer, host.pack(spec)[:-1])
    os.close(writer)
    with pytest.raises(EOFError):
        host.read_spec(reader)
    os.close(reader)


def test_the_process_bears_the_title(control: Control) -> None:
    process = control.start(actors.Quiet)
    control.greet()
    assert psutil.Process(process.pid).cmdline()[0].startswith("pomona: worker a")


def test_the_process_ends_at_once_when_its_lifeline_is_cut(control: Control) -> None:
    process = control.start(actors.Stubborn)
    control.greet()
    cut_lifeline(process)
    assert process.wait(LIMIT_S) == lifeline.ORPHANED


def test_the_process_ends_if_the_supervisor_goes_before_it_has_said_what_to_run(control: Control) -> None:
    process = control.start_bare()
    assert process.stdin is not None
    process.stdin.write(b"\0\0")
    cut_lifeline(process)
    assert process.wait(LIMIT_S) == lifeline.ORPHANED


def test_nothing_in_the_actor_can_read_from_the_lifeline(control: Control) -> None:
    control.start(actors.Reading)
    assert isinstance(control.hear(), Hello)
    assert control.hear() == Ready("0 bytes")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_a_signal_to_the_whole_group_is_left_to_the_supervisor(control: Control, number: signal.Signals) -> None:
    process = control.start(actors.Quiet)
    control.greet()
    process.send_signal(number)
    assert control.hub.send(ME, Stop(1.0))
    assert process.wait(LIMIT_S) == 0, "it was the order to stop that ended it"


def test_an_unexpected_error_is_one_line_on_the_terminal(control: Control) -> None:
    process = control.start(actors.Crashing)
    control.greet()
    assert control.hear() == Failed("ValueError: out of tea", final=False)
    assert process.wait(LIMIT_S) == host.FAILED
    (line,) = stderr(process).splitlines()
    assert " ERROR   worker:a ended-by-error error='ValueError: out of tea' at=actors.py:" in line


def test_the_debug_log_has_the_traceback(control: Control) -> None:
    process = control.start(actors.Crashing, POMONA_LOG="debug")
    assert process.wait(LIMIT_S) == host.FAILED
    text = stderr(process)
    assert "Traceback (most recent call last)" in text
    assert 'raise ValueError("out of tea")' in text


def test_a_failure_that_the_actor_declares_leaves_the_telling_to_the_supervisor(control: Control) -> None:
    process = control.start(actors.Misconfigured)
    assert process.wait(LIMIT_S) == host.FAILED
    assert stderr(process) == ""


def test_a_killed_supervisor_leaves_no_orphan(tmp_path: Path) -> None:
    """A real supervisor in its own process, killed with -9 while an actor that ignores everything runs."""
    program = textwrap.dedent(
        """
        import sys
        from pomona.config import Config
        from pomona.runtime.actor import ActorSpec
        from pomona.runtime.placement import LocalPlacement
        from pomona.runtime.supervisor import Supervisor
        from tests.support import actors

        config = Config(runtime_folder=sys.argv[1])
        plans = [
            ActorSpec(
                name=f"worker:{number}", kind="worker", target=actors.target(actors.Stubborn), control="",
                config=config, title="pomona: worker", environment=actors.ENVIRONMENT,
            )
            for number in range(3)
        ]

        def tell(roster):
            if all(actor.state == "ready" for actor in roster.actors):
                print(*(actor.pid for actor in roster.actors), flush=True)

        Supervisor(LocalPlacement(), plans, config, tell).run()
        """
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, **actors.ENVIRONMENT},
        text=True,
    )
    assert supervisor.stdout is not None
    children = [psutil.Process(int(pid)) for pid in supervisor.stdout.readline().split()]
    assert len(children) == 3
    killed = now()
    supervisor.kill()
    supervisor.communicate(timeout=LIMIT_S)
    _, alive = psutil.wait_procs(children, timeout=5.0)
    assert alive == []
    assert now() - killed < 5.0

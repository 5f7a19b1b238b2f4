"""`serve` as the process that people start, with tiny actors in place of the real ones."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pomona import launch
from pomona.config import CacheConfig, Config, GatewayConfig, ModelConfig
from pomona.home import Home
from pomona.refusal import Refusal
from pomona.runtime.mailbox import now
from tests.support import actors

LIMIT_S = 30.0
CONFIG = Config(
    models=(ModelConfig(id="a", path="/models/a"), ModelConfig(id="b", path="/models/b", replicas=2)),
    gateway=GatewayConfig(api_keys=("secret",), count=2),
    runtime_folder="/run/pomona",
)

PROGRAM = textwrap.dedent(
    """
    import sys
    from pomona import launch
    from pomona.config import Config, GatewayConfig, ModelConfig
    from pomona.refusal import Refusal
    from tests.support import actors

    worker, port = sys.argv[1:]
    kinds = {"gateway": "Doorman", "scheduler": "Quiet", "cache": "Quiet", "worker": worker}
    targets = {kind: f"tests.support.actors:{name}" for kind, name in kinds.items()}
    config = Config(gateway=GatewayConfig(port=int(port)), models=(ModelConfig(id="a", path="/models/a"),))
    try:
        sys.exit(launch.serve(config, targets=targets))
    except Refusal as refusal:
        print(f"pomona: {refusal}", file=sys.stderr)
        sys.exit(refusal.exit_code)
    """
)


class Server:
    def __init__(self, home: Path, worker: type = actors.Quiet, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, worker.__name__, str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **actors.ENVIRONMENT, "POMONA_HOME": str(home), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self.lines: list[str] = []

    def until(self, words: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if words in line:
                return line
        raise AssertionError(f"never said {words!r} but {self.lines} and {self.end()}")

    def port(self) -> int:
        return int(self.until("Pomona listens at").split()[3].rpartition(":")[2])

    def end(self) -> tuple[int, list[str], str]:
        """Exit code, the lines that were left on stdout, and stderr."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out.splitlines(), err

    def actors(self) -> dict[str, psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return {child.cmdline()[0].rstrip(): child for child in children}

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT_S)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.close()


def ask(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
        return int(client.recv(100))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_listens_and_stops_all_in_order(
    tmp_path: Path, servers: list[Server], number: signal.Signals
) -> None:
    servers.append(server := Server(tmp_path))
    port = server.port()
    assert server.until("curl ").startswith(f"  curl http://127.0.0.1:{port}/v1/chat/completions ")
    children = server.actors()
    titles = {"pomona: cache", "pomona: scheduler", "pomona: worker a", "pomona: gateway"}
    assert set(children) == titles
    assert psutil.Process(server.process.pid).cmdline()[0].startswith("pomona: supervisor")
    assert ask(port) == children["pomona: gateway"].pid
    os.killpg(server.process.pid, number)  # as terminals and service managers do it: to the whole group
    code, lines, errors = server.end()
    assert (code, lines[-1], errors) == (0, "stopped", "")
    assert not any(child.is_running() for child in children.values())
    with pytest.raises(ConnectionRefusedError):
        ask(port)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_it_too(tmp_path: Path, servers: list[Server], number: signal.Signals) -> None:
    servers.append(server := Server(tmp_path))
    server.port()
    server.process.send_signal(number)
    assert server.end()[0] == 0


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path, servers: list[Server]) -> None:
    servers.append(server := Server(tmp_path, worker=actors.Stubborn))
    server.port()
    children = server.actors()
    server.process.send_signal(signal.SIGINT)
    server.until("stopping")
    asked = now()
    server.process.send_signal(signal.SIGINT)
    assert server.end()[0] == 0
    assert now() - asked < 5.0
    assert not any(child.is_running() for child in children.values())


def test_the_port_stays_open_while_a_killed_gateway_comes_back(tmp_path: Path, servers: list[Server]) -> None:
    servers.append(server := Server(tmp_path))
    port = server.port()
    old = ask(port)
    os.kill(old, signal.SIGKILL)
    assert server.until("gateway: ended").rstrip() == "gateway: ended: signal 9 (SIGKILL); it starts again"
    assert ask(port) != old, "nobody was refused; the next gateway answers"
    server.until("gateway: ready again")


def test_a_port_in_use_is_one_line_before_anything_starts(tmp_path: Path, servers: list[Server]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        servers.append(server := Server(tmp_path, port=port))
        code, lines, errors = server.end()
    assert (code, lines) == (1, [])
    assert errors.startswith(f"pomona: port {port} on 127.0.0.1 is in use")
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_it_ends_with_the_reason_if_every_model_fails(tmp_path: Path, servers: list[Server]) -> None:
    servers.append(server := Server(tmp_path, worker=actors.Misconfigured))
    code, lines, errors = server.end()
    assert code == 1
    assert "a: failed: the folder is empty; fill it" in lines
    assert errors == "pomona: worker:a: the folder is empty; fill it\n"


def test_a_killed_server_leaves_neither_orphans_nor_the_port_nor_the_folder(
    tmp_path: Path, servers: list[Server]
) -> None:
    servers.append(first := Server(tmp_path, worker=actors.Stubborn))
    port = first.port()
    children = list(first.actors().values())
    assert len(children) == 4
    first.process.kill()
    first.end()
    assert psutil.wait_procs(children, timeout=5.0)[1] == []
    servers.append(second := Server(tmp_path, port=port))
    assert second.port() == port


def test_two_servers_of_one_home_run_side_by_side(tmp_path: Path, servers: list[Server]) -> None:
    servers += [Server(tmp_path), Server(tmp_path)]
    ports = [server.port() for server in servers]
    assert ask(ports[0]) != ask(ports[1])


def test_nothing_to_serve_is_refused() -> None:
    with pytest.raises(Refusal, match="no model to serve"):
        launch.serve(Config())


def test_the_plan_has_every_actor_under_its_name_and_title() -> None:
    plan = launch.plan(CONFIG, listener=9)
    assert {spec.name: (spec.kind, spec.title, spec.model) for spec in plan} == {
        "cache": ("cache", "pomona: cache", None),
        "scheduler": ("scheduler", "pomona: scheduler", None),
        "worker:a": ("worker", "pomona: worker a", "a"),
        "worker:b:0": ("worker", "pomona: worker b:0", "b"),
        "worker:b:1": ("worker", "pomona: worker b:1", "b"),
        "gateway": ("gateway", "pomona: gateway", None),
        "gateway:1": ("gateway", "pomona: gateway:1", None),
    }
    assert all(spec.control == "ipc:///run/pomona/control" for spec in plan)
    assert all(spec.target == launch.TARGETS[spec.kind] for spec in plan)


def test_only_the_gateways_get_the_keys_and_the_listening_socket() -> None:
    for spec in launch.plan(CONFIG, listener=9):
        gateway = spec.kind == "gateway"
        assert spec.config.gateway.api_keys == (("secret",) if gateway else ())
        assert spec.inherit == ((9,) if gateway else ())


def test_a_cache_that_is_switched_off_is_not_started() -> None:
    off = Config(models=CONFIG.models, cache=CacheConfig(enabled=False))
    assert "cache" not in {spec.kind for spec in launch.plan(off, listener=9)}


def test_only_workers_get_the_workers_environment() -> None:
    for spec in launch.plan(CONFIG, listener=9):
        expected = {} if spec.model is None else launch.worker_environment(spec.config.model(spec.model))
        assert spec.environment == expected


def test_folders_that_are_not_set_lie_in_the_home(tmp_path: Path) -> None:
    home = Home.resolve({"POMONA_HOME": "/home/p"})
    placed = launch.placed(Config(), port=8421, home=home)
    assert (placed.gateway.port, placed.runtime_folder, placed.cache_folder) == (
        8421,
        "/home/p/run/8421",
        "/home/p/cache",
    )
    chosen = Config(runtime_folder=str(tmp_path), cache=CacheConfig(folder="/fast/disk"))
    placed = launch.placed(chosen, port=8421, home=home)
    assert (placed.runtime_folder, placed.cache_folder) == (str(tmp_path), "/fast/disk")
    deep = launch.placed(Config(runtime_folder="/" + "deep/" * 40), port=1, home=home)
    assert len(deep.scheduler_endpoint) < 104

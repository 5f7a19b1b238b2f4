"""Servers under test start, get ready and end, whatever happens; real processes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from pomona.cli.bench import server as servers
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.server import RunningServer, ServerCommand, claim_port, serving

DUMMY = Path(__file__).with_name("dummy_server.py")


def command(mode: str, ready_timeout_s: float = 20.0) -> ServerCommand:
    port = claim_port(0)
    return ServerCommand(
        name=mode,
        argv=(sys.executable, str(DUMMY), str(port), mode),
        env=dict(os.environ),
        ready_url=f"http://127.0.0.1:{port}/health",
        ready_timeout_s=ready_timeout_s,
    )


def test_a_server_is_ready_inside_and_gone_after() -> None:
    todo = command("good")
    with serving(todo) as server:
        assert httpx.get(todo.ready_url, trust_env=False).status_code == 200
        assert os.getpgid(server.process.pid) == server.process.pid
        assert "GET /health" in server.log.read_text()
        assert server.last_words == "listening"
    assert server.process.returncode is not None
    assert not psutil.pid_exists(server.process.pid)
    assert not server.log.exists()


def test_a_server_ends_when_the_measurement_fails() -> None:
    with pytest.raises(RuntimeError, match="measurement"), serving(command("good")) as server:
        raise RuntimeError("the measurement")
    assert not psutil.pid_exists(server.process.pid)


def test_a_server_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "TERM_S", 0.2)
    with serving(command("stubborn")) as server:
        pass
    assert server.process.returncode == -9


def test_children_that_a_server_leaves_behind_are_killed() -> None:
    todo = command("parent")
    with serving(todo):
        child = psutil.Process(int(httpx.get(todo.ready_url, trust_env=False).text))
        assert child.is_running()
    gone, _ = psutil.wait_procs([child], timeout=10)
    assert gone or child.status() == psutil.STATUS_ZOMBIE


def test_a_server_that_exits_early_is_named_with_its_last_line() -> None:
    with (
        pytest.raises(BenchError, match=r"^broken exited with 1 before it was ready: half empty$"),
        serving(command("broken")),
    ):
        pytest.fail("it was never ready")


def test_a_server_that_is_not_ready_in_time_is_ended() -> None:
    with (
        pytest.raises(BenchError, match=r"loaded was not ready within 0\.5 s \(raise --ready-timeout\)"),
        serving(command("loaded", ready_timeout_s=0.5)),
    ):
        pytest.fail("it was never ready")


def test_a_server_that_says_it_will_never_be_ready_is_not_waited_for() -> None:
    todo = command("loaded")
    todo = ServerCommand(
        name="loaded", argv=todo.argv, env=todo.env, ready_url=todo.ready_url, ready_timeout_s=20.0, failed_status=503
    )
    with pytest.raises(BenchError, match="loaded cannot serve this model: listening"), serving(todo):
        pytest.fail("it was never ready")


def test_the_last_error_in_a_log_says_more_than_what_follows_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('ValueError: first\nKeyError: second\nstarted\n"GET /health HTTP/1.1" 503 error\n\n')
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        assert RunningServer(name="any", process=process, log=log).last_words == "KeyError: second"
        log.write_text("")
        assert RunningServer(name="any", process=process, log=log).last_words == "it printed nothing"


def test_a_command_that_does_not_exist_is_one_line() -> None:
    todo = ServerCommand(name="ghost", argv=("/no/such/program",), env={}, ready_url="http://127.0.0.1:1/")
    with pytest.raises(BenchError, match="ghost cannot be started"), serving(todo):
        pytest.fail("it cannot start")


def test_a_port_in_use_is_refused_and_zero_gives_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BenchError, match=f"port {port} cannot be used .*: name another with --port"):
            claim_port(port)
    free = claim_port(0)
    assert claim_port(free) == free

"""A server under test: its own process group, a log file, a deadline for being ready, and a certain end."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from pomona.cli.bench.answer import shorten
from pomona.cli.bench.problem import BenchError

POLL_S = 0.1
PROBE_S = 2.0
TERM_S = 30.0
"""Seconds between SIGTERM and SIGKILL."""
KILL_S = 10.0
TAIL_BYTES = 16_384
SILENCE = "it printed nothing"
ACCESS = " HTTP/1."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """How to start one server and how to see that it is ready."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment of the process."""
    ready_url: str
    """Answers 200 once requests may be sent."""
    ready_timeout_s: float = 300.0
    failed_status: int | None = None
    """What `ready_url` answers when the server will never be ready; None if it exits then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A started server; `log` holds all that it printed."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def last_words(self) -> str:
        """The last line printed that speaks of an error, else the last one; access log lines do not count."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        lines = [line for line in lines if line.strip() and ACCESS not in line]
        errors = [line for line in lines if "error" in line.casefold()]
        return shorten((errors or lines or [SILENCE])[-1])


def claim_port(port: int) -> int:
    """`port` if nothing listens there, or any free one for 0; raises BenchError if it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise BenchError(f"port {port} cannot be used ({error.strerror}): name another with --port") from error
        free: int = probe.getsockname()[1]
    return free


@contextlib.contextmanager
def serving(command: ServerCommand) -> Iterator[RunningServer]:
    """Starts a server, waits until it is ready and yields it; at the end nothing of its process group is left.

    Raises BenchError with the server's last line if it cannot start, exits early or is not ready in time.
    """
    with tempfile.TemporaryDirectory(prefix="pomona-bench-") as folder:
        log = Path(folder) / f"{command.name}.log"
        with log.open("wb") as sink:
            try:
                process = subprocess.Popen(
                    command.argv,
                    env=dict(command.env),
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise BenchError(f"{command.name} cannot be started: {error}") from error
        server = RunningServer(name=command.name, process=process, log=log)
        try:
            wait_ready(server, command)
            yield server
        finally:
            end(process)


def wait_ready(server: RunningServer, command: ServerCommand) -> None:
    """Polls `ready_url` until it answers 200."""
    deadline = time.monotonic() + command.ready_timeout_s
    with httpx.Client(timeout=PROBE_S, trust_env=False) as client:
        while True:
            if server.process.poll() is not None:
                code = server.process.returncode
                raise BenchError(f"{server.name} exited with {code} before it was ready: {server.last_words}")
            with contextlib.suppress(httpx.HTTPError):
                status = client.get(command.ready_url).status_code
                if status == 200:
                    return
                if status == command.failed_status:
                    raise BenchError(f"{server.name} cannot serve this model: {server.last_words}")
            if time.monotonic() > deadline:
                raise BenchError(
                    f"{server.name} was not ready within {command.ready_timeout_s:g} s "
                    f"(raise --ready-timeout): {server.last_words}"
                )
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(POLL_S)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the server, which may have children to stop in order; then SIGKILL to all that is left of its group.

    A second interrupt from the keyboard does not cut this short of the SIGKILL.
    """
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TERM_S)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(KILL_S)

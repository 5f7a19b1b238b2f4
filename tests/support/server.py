"""A whole Pomona as a user starts it: `pomona serve` in a process of its own, on a free port, in a home of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil

POMONA = (sys.executable, "-m", "pomona")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Raises AssertionError if the condition does not come true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        time.sleep(0.02)


class Actor(NamedTuple):
    pid: int
    incarnation: int
    state: str


class Server:
    """A running server; `url` is its root, without /v1."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}: {self.log[-2000:]}")
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def actor(self, name: str) -> Actor:
        actors = httpx.get(f"{self.url}/admin/status", timeout=10).json()["actors"]
        found = next(actor for actor in actors if actor["name"] == name)
        return Actor(found["pid"], found["incarnation"], found["state"])

    def kill(self, name: str) -> int:
        """SIGKILL one actor; returns its incarnation."""
        actor = self.actor(name)
        os.kill(actor.pid, signal.SIGKILL)
        return actor.incarnation

    def gauge(self, name: str) -> float:
        """The sum of a metric over its labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert values, f"{name} is not in /metrics"
        return sum(float(value) for value in values)

    def settled(self) -> bool:
        return self.gauge("pomona_scheduler_running") == 0 and self.gauge("pomona_scheduler_waiting") == 0

    def family(self) -> list[psutil.Process]:
        """The server's process and all below it."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def ask(self, body: Mapping[str, Any], path: str = "/v1/chat/completions") -> dict[str, Any]:
        response = httpx.post(f"{self.url}{path}", json=body, timeout=300)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


@contextmanager
def serving(
    home: Path,
    models: Iterable[Path | str],
    *,
    toml: str = "",
    environment: Mapping[str, str] | None = None,
    within_s: float = 180,
) -> Iterator[Server]:
    """Start a server, wait until it is ready, and end it with SIGTERM; it must end by itself within 20 seconds."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "pomona.toml").write_text(toml)
    port, log = free_port(), home / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*POMONA, "serve", *map(str, models), "--port", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "POMONA_HOME": str(home), **(environment or {})},
        )
    server = Server(process, port, log)
    try:
        wait_until(server.ready, within_s, "the server is ready")
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError(f"the server did not stop: {server.log[-2000:]}") from None

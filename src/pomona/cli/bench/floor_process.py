"""The bare loop as a process of its own: one line of JSON in, one out, each answer within a deadline."""

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from pomona.cli.bench.answer import shorten
from pomona.cli.bench.floor import FloorRun, FloorTask, Loader
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.server import end

CHUNK = 65_536


class FloorProcess:
    """`run` sends one task and waits for its result; raises BenchError if the process ends or is late."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.process = process
        self._log = log
        self._read = b""

    def run(self, task: FloorTask, limit_s: float) -> FloorRun:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(task) + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error
        return msgspec.json.decode(self._line(time.monotonic() + limit_s, limit_s), type=FloorRun)

    def _line(self, deadline: float, limit_s: float) -> bytes:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._read:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BenchError(f"the bare loop gave no result within {limit_s:g} s")
            part = os.read(descriptor, CHUNK)
            if not part:
                raise self._ended()
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _ended(self) -> BenchError:
        code = self.process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        return BenchError(f"the bare loop exited with {code}: {shorten(lines[-1])}")


@contextlib.contextmanager
def floor_process(folder: Path, loader: Loader, env: Mapping[str, str]) -> Iterator[FloorProcess]:
    """Starts the loop, which loads its model before its first answer; nothing of it is left at the end."""
    argv = (sys.executable, "-m", "pomona.cli.bench.floor", str(folder), str(loader))
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield FloorProcess(process, log)
        finally:
            end(process)

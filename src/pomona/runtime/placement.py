"""Where actors run: a placement starts one from its specification and hands back a handle on its life."""

import os
import signal
import subprocess
import sys
from typing import Protocol

from pomona.runtime import host
from pomona.runtime.actor import ActorSpec
from pomona.runtime.control import ActorName

REPORTED = "ended after it reported its failure"
"""Exit reason of an actor whose `Failed` is on its way to the supervisor, or there."""


class PlacementError(Exception):
    """The actor could not be started; the text says why."""


class Handle(Protocol):
    """One incarnation of an actor. All methods may be called from any thread."""

    @property
    def name(self) -> ActorName: ...

    @property
    def pid(self) -> int | None:
        """None where only the actor itself knows it; HELLO carries it."""

    def wait(self, timeout_s: float | None) -> str | None:
        """Why the actor ended, for people; None if it still runs after `timeout_s` seconds (None: wait for ever)."""

    def kill(self) -> None:
        """End it at once, without its consent; does nothing if it has ended. Its end is seen by `wait`."""


class Placement(Protocol):
    def start(self, spec: ActorSpec) -> Handle:
        """Start the actor and return at once; raises PlacementError if that cannot be done."""


class LocalHandle:
    """A child process."""

    def __init__(self, name: ActorName, process: "subprocess.Popen[bytes]") -> None:
        self.name = name
        self.pid: int | None = process.pid
        self._process = process

    def wait(self, timeout_s: float | None) -> str | None:
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        # The other end of the lifeline is gone, so the pipe has served.
        if self._process.stdin is not None:
            self._process.stdin.close()
        return describe(status)

    def kill(self) -> None:
        self._process.kill()


def describe(status: int) -> str:
    """A process's return code in words."""
    if status == host.FAILED:
        return REPORTED
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"


class LocalPlacement:
    """Processes on this machine, never forked: MLX, Metal and llguidance threads do not survive a fork.

    The children stay in the process group of `pomona serve`, so that a kill of the group ends them all. Signals
    that ask the group to end reach them too; they ignore these, because the supervisor stops them in order. Their
    stdin is the lifeline.
    """

    def start(self, spec: ActorSpec) -> LocalHandle:
        # Until the child has settled its signals they would end it, a Ctrl-C with a traceback: it starts with them
        # blocked.
        blocked = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            process = subprocess.Popen(
                # -P: what lies in the user's current folder must not replace modules of ours.
                [sys.executable, "-P", "-m", host.__name__],
                stdin=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, **spec.environment},
                pass_fds=spec.inherit,
            )
        except OSError as error:
            raise PlacementError(f"cannot start {spec.name}: {error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if process.stdin is not None:
            _write(process.stdin.fileno(), host.pack(spec))
        return LocalHandle(spec.name, process)


def _write(descriptor: int, data: bytes) -> None:
    """All of `data`; less where the reader died at birth, which `wait` will tell."""
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BrokenPipeError:
        return

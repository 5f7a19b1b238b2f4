"""Whether constraints can be compiled, found out in another process, which is killed where it takes too much."""

import asyncio
import contextlib
import sys
from collections import OrderedDict
from hashlib import blake2b
from math import inf
from typing import NamedTuple

import msgspec
import psutil

from pomona.gateway.errors import ApiError, invalid
from pomona.gateway.grammar_checker import READY, Verdict
from pomona.runtime.mailbox import now
from pomona.workers.messages import Constraint

LIMIT_S = 5.0
"""Seconds of one compilation."""
LIMIT_BYTES = 1 << 30
"""Memory of the process in one compilation."""
START_S = 60.0
LOOK_S = 0.05
"""Seconds between two looks at its memory."""
WAITING = 64
"""Constraints that may wait for the process at once."""
KNOWN = 1024
"""Constraints whose verdict is kept."""
KILLED_S = 60.0
"""Seconds for which one that took too much is not tried again: a busy machine may have been the reason."""


class _Verdict(NamedTuple):
    reason: str
    until: float = inf
    """When it counts no more, in seconds of `now()`."""


class GrammarChecker:
    """Verdicts by one process, one at a time; each constraint is looked into once, however many ask at once."""

    def __init__(
        self, *, limit_s: float = LIMIT_S, limit_bytes: int = LIMIT_BYTES, waiting: int = WAITING, known: int = KNOWN
    ) -> None:
        self._limit_s = limit_s
        self._limit_bytes = limit_bytes
        self._most_waiting = waiting
        self._most_known = known
        self._known: OrderedDict[bytes, _Verdict] = OrderedDict()
        self._asked: dict[bytes, asyncio.Task[str]] = {}
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def check(self, constraint: Constraint, param: str) -> None:
        """Raises ApiError: 400 where the constraint cannot be followed, 503 where too many others wait."""
        reason = await self._reason(constraint)
        if reason:
            raise invalid(f"{param}: {reason}", param)

    async def close(self) -> None:
        """End the process, and whatever is asked of it."""
        for task in list(self._asked.values()):
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        await self._end()

    async def _reason(self, constraint: Constraint) -> str:
        key = blake2b(msgspec.json.encode(constraint)).digest()
        known = self._known.get(key)
        if known is not None and now() < known.until:
            self._known.move_to_end(key)
            return known.reason
        task = self._asked.get(key)
        if task is None:
            if len(self._asked) >= self._most_waiting:
                raise ApiError(
                    503, f"{len(self._asked)} new constraints wait to be compiled; try again", retry_after_s=5
                )
            task = self._asked[key] = asyncio.create_task(self._find(key, constraint))
        return await asyncio.shield(task)  # a client that leaves does not take it from the others

    async def _find(self, key: bytes, constraint: Constraint) -> str:
        try:
            async with self._turn:
                verdict = self._known[key] = await self._compile(constraint)
            while len(self._known) > self._most_known:
                self._known.popitem(last=False)
            return verdict.reason
        finally:
            del self._asked[key]

    async def _compile(self, constraint: Constraint) -> _Verdict:
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = asyncio.ensure_future(process.stdout.readline())
        watch = asyncio.ensure_future(self._exceeds(process.pid))
        try:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(msgspec.json.encode(constraint) + b"\n")
                await asyncio.wait_for(process.stdin.drain(), self._limit_s)
            await asyncio.wait({answer, watch}, timeout=self._limit_s, return_when=asyncio.FIRST_COMPLETED)
            if answer.done() and (line := answer.result()):
                return _Verdict(msgspec.json.decode(line, type=Verdict).reason)
            died = watch.done() or answer.done()  # killed by the system, as a rule, for the memory that it took
            await self._end()
            limit = f"{self._limit_bytes >> 20} MiB of memory" if died else f"{self._limit_s:g} s"
            return _Verdict(f"it takes more than {limit} to compile; make it simpler", now() + KILLED_S)
        except BaseException:
            await self._end()  # its answer would be taken for that of the next one
            raise
        finally:
            answer.cancel()
            watch.cancel()

    async def _exceeds(self, pid: int) -> None:
        """Returns when the process holds more than it may."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            base = process.memory_info().rss
            while process.memory_info().rss - base <= self._limit_bytes:
                await asyncio.sleep(LOOK_S)
            return
        await asyncio.Event().wait()  # it has ended: its closed output tells

    async def _start(self) -> asyncio.subprocess.Process:
        """Raises ApiError if it does not come up."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pomona.gateway.grammar_checker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._process = process
        assert process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), START_S)
        if line != READY:
            await self._end()
            raise ApiError(500, "the process that checks constraints did not start; the server's log says why")
        return process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

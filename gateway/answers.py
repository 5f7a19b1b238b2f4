"""The events of one answer: one stream of tokens, or several that are one answer's choices."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import NamedTuple, Self

from pomona.gateway.closing import Closing, stopping
from pomona.gateway.errors import ApiError, from_rejection
from pomona.gateway.source import TokenSource, TokenStream
from pomona.scheduler.client import Rejected
from pomona.workers.messages import Finish, Request, TokenEvent


class Step(NamedTuple):
    """An event of the stream with this number."""

    stream: int
    event: TokenEvent


class Silence(NamedTuple):
    """Nothing came for `seconds`."""

    seconds: float


class Answer:
    """Submits the requests on entry, cancels what still runs on exit; iterate it in between.

    Iterating raises ApiError if a request is refused, fails, or the gateway closes. A failed request's last text comes
    before its error. What is not read yet waits in the request's own stream, which its token limit bounds, so a slow
    reader holds up nobody else.
    """

    def __init__(self, source: TokenSource, requests: Sequence[Request], silence_s: float, closing: Closing) -> None:
        self._source = source
        self._requests = requests
        self._silence_s = silence_s
        self._closing = closing
        self._stack = AsyncExitStack()
        self._listeners: set[asyncio.Task[None]] = set()
        self._ready: deque[Step | Exception] = deque()
        self._woken = asyncio.Event()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(self._source.submit(request)) for request in self._requests]
            self._stack = stack.pop_all()
        self._closing.cutting.add_done_callback(self._wake)
        for index, stream in enumerate(streams):
            listener = asyncio.create_task(self._listen(index, stream))
            self._listeners.add(listener)
            listener.add_done_callback(self._wake)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.cutting.remove_done_callback(self._wake)
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step | Silence:
        while not self._ready:
            if self._closing.cutting.done():
                raise stopping()
            if all(listener.done() for listener in self._listeners):
                raise StopAsyncIteration
            self._woken.clear()
            try:
                async with asyncio.timeout(self._silence_s):
                    await self._woken.wait()
            except TimeoutError:
                return Silence(self._silence_s)
        step = self._ready.popleft()
        if isinstance(step, Exception):
            raise step
        return step

    def _wake(self, _: object) -> None:
        self._woken.set()

    async def _listen(self, index: int, stream: TokenStream) -> None:
        """Take in one stream up to its end, or to what ended it."""
        try:
            async for event in stream:
                self._ready.append(Step(index, event))
                self._woken.set()
                if event.finish is not None:
                    self._close(event.finish)
                    return
            self._ready.append(_cancelled(""))
        except Rejected as rejected:
            self._ready.append(from_rejection(rejected))
        except Exception as error:
            self._ready.append(error)

    def _close(self, finish: Finish) -> None:
        match finish.reason:
            case "error":
                reason = finish.message or "the model failed on this request"
                self._ready.append(ApiError(500, reason, code="generation_failed"))
            case "cancelled":
                self._ready.append(_cancelled(finish.message))
            case _:
                pass


def _cancelled(message: str) -> ApiError:
    return ApiError(503, message or "the request was cancelled", code="cancelled")

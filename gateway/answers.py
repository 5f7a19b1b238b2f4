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
        self._streams: list[TokenStream] = []
        self._waits: dict[asyncio.Future[TokenEvent], int] = {}
        self._ready: deque[Step | ApiError] = deque()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for request in self._requests:
                self._streams.append(await stack.enter_async_context(self._source.submit(request)))
            self._stack = stack.pop_all()
        for index in range(len(self._streams)):
            self._wait_for(index)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waits = list(self._waits)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step | Silence:
        while not self._ready:
            if not self._waits:
                raise StopAsyncIteration
            waits: set[asyncio.Future[TokenEvent] | asyncio.Future[None]] = {*self._waits, self._closing.cutting}
            done, _ = await asyncio.wait(waits, timeout=self._silence_s, return_when=asyncio.FIRST_COMPLETED)
            if self._closing.cutting in done:
                raise stopping()
            if not done:
                return Silence(self._silence_s)
            for wait in [wait for wait in self._waits if wait in done]:
                self._take(self._waits.pop(wait), wait)
        step = self._ready.popleft()
        if isinstance(step, ApiError):
            raise step
        return step

    def _wait_for(self, index: int) -> None:
        self._waits[asyncio.ensure_future(anext(self._streams[index]))] = index

    def _take(self, index: int, wait: asyncio.Future[TokenEvent]) -> None:
        try:
            event = wait.result()
        except StopAsyncIteration:
            self._ready.append(_cancelled(""))
            return
        except Rejected as rejected:
            self._ready.append(from_rejection(rejected))
            return
        self._ready.append(Step(index, event))
        match event.finish:
            case None:
                self._wait_for(index)
            case Finish(reason="error", message=message):
                reason = message or "the model failed on this request"
                self._ready.append(ApiError(500, reason, code="generation_failed"))
            case Finish(reason="cancelled", message=message):
                self._ready.append(_cancelled(message))
            case Finish():
                pass


def _cancelled(message: str) -> ApiError:
    return ApiError(503, message or "the request was cancelled", code="cancelled")

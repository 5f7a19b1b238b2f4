"""One request's answer as its consumer sees it: an ordered stream of token events."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from pomona.scheduler.messages import RefusalKind
from pomona.workers.messages import Request, RequestId, TokenEvent


class Rejected(Exception):
    """The request will not run, or not to its end; nothing of it is held any more."""

    def __init__(self, kind: RefusalKind, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.kind: RefusalKind = kind
        self.message = message
        self.retry_after_s = retry_after_s


class TokenStream:
    """Async iterator of a request's `TokenEvent`s: in order, each position once, the last with `finish`.

    Raises `Rejected` from iteration where the scheduler refuses. It ends without `finish` only if it was cancelled.
    Used as `async with client.submit(request) as stream`, it cancels the request on exit if it has not ended. What is
    not consumed yet is kept; `max_tokens` bounds it.
    """

    def __init__(self, request: Request, cancel: Callable[[RequestId], None]) -> None:
        """`cancel` does nothing for a request that has ended."""
        self.request = request
        self.prefilled = 0
        """Prompt tokens done, as far as the worker told."""
        self.committed: list[int] = list(request.committed)
        """Output tokens of every event taken in so far; what a resubmission starts from."""
        self.ended = False
        """Nothing more will be taken in."""
        self._cancel = cancel
        self._events: asyncio.Queue[TokenEvent | Rejected | None] = asyncio.Queue()

    @property
    def id(self) -> RequestId:
        return self.request.id

    def push(self, event: TokenEvent) -> None:
        """Take in the next event; the caller has checked its position."""
        self.committed.extend(event.tokens)
        self._events.put_nowait(event)
        if event.finish is not None:
            self.end()

    def end(self, why: Rejected | None = None) -> None:
        """No more events: iteration raises `why`, or stops, after what is queued. Idempotent."""
        if not self.ended:
            self.ended = True
            self._events.put_nowait(why)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent:
        if self.ended and self._events.empty():
            raise StopAsyncIteration
        match await self._events.get():
            case None:
                raise StopAsyncIteration
            case Rejected() as rejected:
                raise rejected
            case event:
                return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cancel(self.id)

"""Where answers come from, as the gateway sees it: the scheduler's client is one, tests script another."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

from pomona.scheduler.messages import ModelState, Stats
from pomona.workers.messages import Request, TokenEvent


class TokenStream(Protocol):
    """The events of one request, each position once; it ends behind the event that carries `finish`.

    The first `__anext__` raises `Rejected` where the request will not run. Leaving the context cancels what still runs.
    """

    def __aiter__(self) -> AsyncIterator[TokenEvent]: ...
    async def __anext__(self) -> TokenEvent: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TokenSource(Protocol):
    @property
    def models(self) -> tuple[ModelState, ...]: ...

    @property
    def connected(self) -> bool:
        """Whether the scheduler has answered on the current link."""

    def submit(self, request: Request) -> TokenStream: ...

    async def stats(self, timeout_s: float) -> Stats:
        """Raises TimeoutError."""

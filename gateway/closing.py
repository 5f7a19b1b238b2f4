"""The end of a gateway: no new answers, and a last moment for those that run."""

import asyncio

from pomona.gateway.errors import ApiError


class Closing:
    """`close` refuses what is new; `cut` ends what still runs. Both are idempotent; lives on the event loop."""

    def __init__(self) -> None:
        self.closed = False
        self.cutting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        self.closed = True

    def cut(self) -> None:
        self.closed = True
        if not self.cutting.done():
            self.cutting.set_result(None)

    def check(self) -> None:
        """Raises ApiError once the gateway is closing."""
        if self.closed:
            raise stopping()


def stopping() -> ApiError:
    return ApiError(503, "the server is stopping; try again in a moment", code="stopping", retry_after_s=5)

"""The body limit: 413 in the API's own shape, whether or not the client announced a length."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pomona.gateway.errors import ApiError, error_response

DRAIN_S = 10.0
"""Seconds that a refused body may take to arrive; a client that is still sending would not read the answer."""

DRAIN_FACTOR = 4
"""A refused body is read up to this many times the limit."""


class LimitBody:
    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self._max_bytes:
            if b"expect" not in headers:
                await self._drain(receive)
            await error_response(self._too_large(f"{int(announced)} bytes"), scope)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._max_bytes:
                    await self._drain(receive)
                    raise self._too_large(f"more than {self._max_bytes} bytes")
            return message

        await self._app(scope, counted, send)

    def _too_large(self, size: str) -> ApiError:
        return ApiError(
            413,
            f"the body is {size}, and the limit is {self._max_bytes} (gateway.max_body_bytes)",
            code="body_too_large",
        )

    async def _drain(self, receive: Receive) -> None:
        left = DRAIN_FACTOR * self._max_bytes
        try:
            async with asyncio.timeout(DRAIN_S):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return

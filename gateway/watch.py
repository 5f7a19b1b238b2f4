"""The outermost layer: an id for each request, its metrics, one log line when it ends."""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pomona.gateway.ids import new_id
from pomona.gateway.metrics import Metrics
from pomona.runtime.mailbox import now

log = logging.getLogger("pomona.gateway")


class Watch:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id("req_")
        state: dict[str, str] = scope.setdefault("state", {})
        state["request_id"] = request_id
        status = 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                name = request_id.encode()
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name), (b"request-id", name)]
            await send(message)

        begun = now()
        with self._metrics.in_flight.track_inprogress():
            try:
                await self._app(scope, receive, named)
            finally:
                route = getattr(scope.get("route"), "path", "none")
                took = now() - begun
                method = scope["method"] if route != "none" else "any"
                self._metrics.requests.labels(method, route, str(status or 499)).inc()
                self._metrics.duration.labels(route).observe(took)
                level = logging.DEBUG if route.startswith(("/health", "/metrics")) else logging.INFO
                log.log(
                    level, "request-ended id=%s route=%s status=%d seconds=%.3f", request_id, route, status or 499, took
                )

"""How an answer leaves: as one JSON body or as a stream, for a client that may leave first."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pomona.gateway.answers import Answer, Silence, Step
from pomona.gateway.body import encode_json
from pomona.gateway.errors import ApiError, error_response, request_id
from pomona.gateway.services import Services
from pomona.gateway.sse import HEADERS, AnswerWriter, Sse, encode_sse
from pomona.runtime.mailbox import now
from pomona.workers.messages import Request

log = logging.getLogger("pomona.gateway")


class AnswerResponse(Response):
    """Runs the requests and writes their answer; the requests are cancelled when the client leaves.

    The head of a stream is sent with its first tokens, or with the first keepalive; a refusal before that has its own
    status, an error after it is an event.
    """

    def __init__(
        self,
        services: Services,
        requests: Sequence[Request],
        writer: AnswerWriter,
        *,
        stream: bool,
        headers: Mapping[str, str],
    ) -> None:
        self.background = None
        self._services = services
        self._requests = requests
        self._writer = writer
        self._stream = stream
        self._extra = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._stream_answer(scope, send) if self._stream else self._whole(scope, send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._services.metrics.disconnects.inc()
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
            await asyncio.wait({work, gone})
        if not work.cancelled():
            work.result()

    def _answer(self) -> Answer:
        services = self._services
        return Answer(services.source, self._requests, services.config.gateway.keepalive_s, services.closing)

    async def _whole(self, scope: Scope, send: Send) -> None:
        writer = self._writer
        try:
            async with self._answer() as answer:
                pace = Pace(self._services, self._requests)
                _drop(writer.begin())
                async for step in answer:
                    if isinstance(step, Step):
                        pace.mark(step)
                        _drop(writer.feed(step.stream, step.event))
                _drop(writer.end())
        except ApiError as error:
            await error_response(error, scope)(scope, _never, send)
            return
        await Response(encode_json(writer.body()), 200, self._extra, "application/json")(scope, _never, send)

    async def _stream_answer(self, scope: Scope, send: Send) -> None:
        writer, out = self._writer, Stream(send, self._extra)
        try:
            async with self._answer() as answer:
                pace = Pace(self._services, self._requests)
                async for step in answer:
                    if not out.started:
                        await out.start(writer.begin())
                    match step:
                        case Silence():
                            await out.write(writer.keepalive)
                        case Step(index, event):
                            pace.mark(step)
                            await out.events(writer.feed(index, event))
                            if out.silent_s >= self._services.config.gateway.keepalive_s:
                                await out.write(writer.keepalive)  # tokens come, but what they say is held back
                        case _:
                            assert_never(step)
                await out.events(writer.end())
                await out.finish(writer.last)
        except ApiError as error:
            if not out.started:
                await error_response(error, scope)(scope, _never, send)
                return
            await out.events(writer.fail(error))
            await out.finish(b"")
        except Exception:
            if not out.started:
                raise
            log.exception("answer-failed request=%s", request_id(scope))
            await out.events(writer.fail(ApiError(500, "internal error; the server's log has it", code="internal")))
            await out.finish(b"")


class Stream:
    """The bytes of an event stream; `send` waits while the client does not read."""

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self._send = send
        self._headers = {"content-type": "text/event-stream; charset=utf-8", **HEADERS, **headers}
        self.started = False
        self._wrote = now()

    @property
    def silent_s(self) -> float:
        """Seconds since something was written."""
        return now() - self._wrote

    async def start(self, events: Iterable[Sse]) -> None:
        self.started = True
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.events(events)

    async def events(self, events: Iterable[Sse]) -> None:
        await self.write(b"".join(encode_sse(event) for event in events))

    async def write(self, data: bytes) -> None:
        if data:
            self._wrote = now()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


class Pace:
    """Times the tokens of an answer for the metrics."""

    def __init__(self, services: Services, requests: Sequence[Request]) -> None:
        self._ttft = services.metrics.ttft
        self._gap = services.metrics.gap
        self._model = requests[0].model
        self._begun = now()
        self._last: dict[int, float] = {}

    def mark(self, step: Step) -> None:
        if not step.event.tokens:
            return
        at = now()
        before = self._last.get(step.stream)
        if before is None:
            self._ttft.labels(self._model).observe(at - self._begun)
        else:
            self._gap.labels(self._model).observe(at - before)
        self._last[step.stream] = at


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _never() -> Message:
    raise RuntimeError("the body was read before")


def _drop(events: Iterable[Sse]) -> None:
    """Run a writer that nobody streams; writers may be generators."""
    for _ in events:
        pass

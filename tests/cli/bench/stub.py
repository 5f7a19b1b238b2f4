"""A few lines of an OpenAI-compatible server whose behaviour is chosen by the model name that is asked for."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

WORDS = ("An ", "orchard ", "in ", "spring")
DEADLINE_S = 20.0


def event(payload: object) -> str:
    return f"data: {json.dumps(payload)}\n\n"


def delta(text: str, finish: str | None = None) -> str:
    return event({"choices": [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 5}})


@dataclass
class Stub:
    """What the server saw; `url` is its base with /v1."""

    url: str = ""
    bodies: list[dict[str, object]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    meet: int = 1
    """Requests that wait for each other before any is answered."""
    answer_first: int = 0
    """For the model `stuck`: how many requests are answered before all further ones hang."""
    stuck: threading.Event = field(default_factory=threading.Event)
    """Set when the model `stuck` hangs and all that it answers has been sent."""
    models: tuple[str, ...] = ("good",)

    def app(self) -> FastAPI:
        app = FastAPI()
        met = asyncio.Condition()
        sent = 0

        @app.get("/v1/models")
        async def models() -> dict[str, object]:
            return {"object": "list", "data": [{"id": name} for name in self.models]}

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            body = await request.json()
            self.bodies.append(body)
            self.keys.append(request.headers.get("authorization"))
            if body["model"] == "refusing":
                return JSONResponse({"error": {"message": "the queue is full"}}, status_code=429)
            return StreamingResponse(answer(body["model"]), media_type="text/event-stream")

        async def answer(model: str) -> AsyncIterator[str]:
            nonlocal sent
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                async with met, asyncio.timeout(DEADLINE_S):
                    met.notify_all()
                    await met.wait_for(lambda: self.most_running >= self.meet)
                yield ": keepalive\n\n"
                if model == "stuck" and self.running + sent > self.answer_first:
                    async with met, asyncio.timeout(DEADLINE_S):
                        await met.wait_for(lambda: sent >= self.answer_first)
                    self.stuck.set()
                    await asyncio.sleep(DEADLINE_S)
                for part in lines(model):
                    yield part
                async with met:
                    sent += 1
                    met.notify_all()
            finally:
                self.running -= 1

        return app


def lines(model: str) -> Iterator[str]:
    yield event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
    for word in WORDS:
        yield delta(word)
    if model == "chatty":
        yield from (delta("more ") for _ in range(10_000))
    if model == "failing":
        yield event({"error": {"message": "the worker died", "type": "server_error"}})
        return
    if model == "garbled":
        yield "data: {not json\n\n"
    if model != "endless":
        yield delta("", "length")
    if model != "uncounted":
        yield USAGE
    yield "data: [DONE]\n\n"


@contextlib.contextmanager
def running(stub: Stub) -> Iterator[Stub]:
    """Serves `stub` from a thread on a free port; the socket listens before this returns, so nobody need wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stub.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        config = uvicorn.Config(stub.app(), log_level="warning", ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield stub
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)
            assert not thread.is_alive()

"""Streams over real sockets: keepalives, clients that vanish or read slowly, a server that stops."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from pomona.workers.messages import Delta, Request, TokenEvent
from tests.gateway.conftest import Gateway, GatewayFactory, JsonBody, Serve, events_of
from tests.support.scripted_source import Step, say

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"

HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, JsonBody] = {
    CHAT: {"model": "tiny", "messages": HI},
    COMPLETIONS: {"model": "tiny", "prompt": "Hi"},
    RESPONSES: {"model": "tiny", "input": "Hi"},
    MESSAGES: {"model": "tiny", "messages": HI, "max_tokens": 100},
}
WAIT_S = 10.0


def held(gate: asyncio.Event, *before: str) -> Callable[[Request], list[Step]]:
    """Says `before`, then nothing until the gate opens, then ends."""

    def script(request: Request) -> list[Step]:
        events = say(request, *before, "end")
        return [*events[: len(before)], gate, *events[len(before) :]]

    return script


async def until(condition: Callable[[], bool]) -> None:
    """Fails if it does not come true in time."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("before", [(), ("He",)])
async def test_a_silent_stream_is_kept_alive(
    open_gateway: GatewayFactory, serve: Serve, path: str, before: tuple[str, ...]
) -> None:
    gate = asyncio.Event()
    served = await serve(open_gateway(held(gate, *before), keepalive_s=0.02))
    alive = "event: ping" if path == MESSAGES else ": keepalive"
    lines: list[str] = []
    async with (
        httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as http,
        http.stream("POST", path, json=BODIES[path] | {"stream": True}) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            lines.append(line)
            if lines.count(alive) == 3:
                gate.set()
    assert lines.count(alive) >= 3
    events = events_of("\n".join(lines))
    assert "end" in str(events)
    if path == MESSAGES:
        assert events[0]["type"] == "message_start"
    if path == RESPONSES:
        assert events[0]["type"] == "response.created"


@pytest.mark.parametrize("path", BODIES)
async def test_a_silent_answer_in_one_piece_holds_no_keepalives(
    open_gateway: GatewayFactory, serve: Serve, path: str
) -> None:
    gate = asyncio.Event()
    gateway = open_gateway(held(gate), keepalive_s=0.01)
    served = await serve(gateway)
    async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as http:
        asked = asyncio.create_task(http.post(path, json=BODIES[path]))
        await until(lambda: len(gateway.source.running) == 1)
        asyncio.get_running_loop().call_later(0.05, gate.set)
        response = await asked
    assert response.json()
    assert "keepalive" not in response.text
    assert "ping" not in response.text


async def _vanish(served_url: str, path: str, stream: bool, gateway: Gateway, count: int) -> None:
    """Open `count` requests on raw sockets, wait until all run, and close the sockets."""
    import json

    host, port = served_url.removeprefix("http://").split(":")
    writers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(BODIES[path] | {"stream": stream}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writers.append((reader, writer))
    await until(lambda: len(gateway.source.running) == count)
    for _, writer in writers:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("before", [(), ("He",)])
async def test_clients_that_vanish_are_cancelled(
    open_gateway: GatewayFactory, serve: Serve, path: str, stream: bool, before: tuple[str, ...]
) -> None:
    gateway = open_gateway(held(asyncio.Event(), *before))
    served = await serve(gateway)
    await _vanish(served.url, path, stream, gateway, 4)
    await until(lambda: len(gateway.source.cancelled) == 4)
    assert gateway.source.running == set()
    assert sorted(gateway.source.cancelled) == sorted(request.id for request in gateway.source.submitted)
    samples = (await gateway.http.get("/metrics")).text
    assert "pomona_gateway_disconnects_total 4.0" in samples
    assert "pomona_scheduler_running 0.0" in samples


async def test_an_answer_that_ended_is_not_cancelled(gateway: Gateway) -> None:
    await gateway.http.post(CHAT, json=BODIES[CHAT])
    await gateway.http.post(CHAT, json=BODIES[CHAT] | {"stream": True})
    assert gateway.source.cancelled == []


async def test_one_failed_choice_cancels_the_others(open_gateway: GatewayFactory) -> None:
    from pomona.scheduler.client import Rejected

    def script(request: Request) -> list[Step]:
        if request.sampling.seed == 1:
            return [asyncio.Event()]
        return [Rejected("queue_full", "full", 2)]

    gateway = open_gateway(script)
    response = await gateway.http.post(CHAT, json=BODIES[CHAT] | {"n": 2, "seed": 1})
    assert response.status_code == 429
    assert gateway.source.running == set()
    assert len(gateway.source.cancelled) == 1


async def test_a_reader_that_stalls_holds_up_nobody(open_gateway: GatewayFactory, serve: Serve) -> None:
    big = "x" * 20_000

    def script(request: Request) -> list[Step]:
        if request.limits.max_tokens == 7:
            return say(request, "quick")
        return [
            *(TokenEvent(id=request.id, position=i, tokens=(i,), deltas=(Delta("content", big),)) for i in range(1000)),
            asyncio.Event(),
        ]

    gateway = open_gateway(script)
    served = await serve(gateway)
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    body = b'{"model": "tiny", "prompt": "Hi", "stream": true}'
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await reader.readline()
    async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as http:
        for _ in range(5):
            response = await http.post(CHAT, json=BODIES[CHAT] | {"max_tokens": 7})
            assert response.json()["choices"][0]["message"]["content"] == "quick"
    assert len(gateway.source.running) == 1
    writer.close()
    await until(lambda: not gateway.source.running)


@pytest.mark.parametrize("path", BODIES)
async def test_a_bug_behind_the_head_is_an_error_event(open_gateway: GatewayFactory, path: str) -> None:
    def script(request: Request) -> list[Step]:
        event = say(request, "a")[0]
        broken = TokenEvent(id=request.id, position=1, deltas=(Delta("smoke", "b"),))  # type: ignore[arg-type]
        return [event, broken]

    gateway = open_gateway(script)
    response = await gateway.http.post(path, json=BODIES[path] | {"stream": True})
    last = events_of(response.text)[-1]
    assert last.get("type") in (None, "error", "response.failed")
    assert "internal error" in str(last)
    assert "smoke" not in str(last)


@pytest.mark.parametrize("path", BODIES)
async def test_stopping_lets_answers_end_and_then_cuts_them_with_an_error(
    open_gateway: GatewayFactory, serve: Serve, path: str
) -> None:
    gate, never = asyncio.Event(), asyncio.Event()
    scripts = iter((held(gate, "He"), held(never, "He")))
    gateway = open_gateway(lambda request: next(scripts)(request))
    served = await serve(gateway)
    async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S) as http:
        body = BODIES[path] | {"stream": True}
        finishing = asyncio.create_task(http.post(path, json=body))
        await until(lambda: len(gateway.source.running) == 1)
        cut = asyncio.create_task(http.post(path, json=body))
        await until(lambda: len(gateway.source.running) == 2)
        stopping = asyncio.create_task(served.server.stop(0.5, gateway.services.closing))
        await until(lambda: gateway.services.closing.closed)
        gate.set()
        whole, broken = await finishing, await cut
        await asyncio.wait_for(stopping, WAIT_S)
    assert "end" in str(events_of(whole.text))
    assert "stopping" not in whole.text
    assert "the server is stopping" in str(events_of(broken.text)[-1])
    refused = await gateway.http.post(path, json=body)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0

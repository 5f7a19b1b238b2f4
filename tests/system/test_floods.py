"""More clients than there is room for, and clients that do not read."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server import Server, serving, wait_until
from tests.support.streams import Heard, listen
from tests.support.tiny_model import build_tiny_model

ROOM = 100


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    toml = f"[scheduler]\nmax_waiting = {ROOM}\n"
    with serving(tmp_path_factory.mktemp("home"), [folder], toml=toml) as server:
        yield server


def body(text: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
        **more,
    }


async def test_a_thousand_requests_at_once_are_answered_or_told_when_to_come_back(tiny: Server) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:
        answers = await asyncio.gather(
            *(
                client.post(f"{tiny.url}/v1/chat/completions", json=body(f"flood {number}", 24))
                for number in range(1000)
            )
        )
    counted = Counter(answer.status_code for answer in answers)
    assert set(counted) == {200, 429}, counted
    assert counted[200] >= ROOM
    for answer in answers:
        if answer.status_code == 429:
            assert 1 <= int(answer.headers["retry-after"]) <= 120
            assert "scheduler.max_waiting" in answer.json()["error"]["message"]
        else:
            assert answer.json()["usage"]["completion_tokens"] == 24
    wait_until(tiny.settled, 30, "nothing runs or waits")
    assert tiny.gauge("pomona_worker_kv_bytes") == 0
    assert tiny.gauge("pomona_gateway_http_in_flight") <= 1  # the question itself


def unread(port: int, request: dict[str, Any]) -> socket.socket:
    """A client that asks for a stream and takes nothing of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(("127.0.0.1", port))
    data = json.dumps({**request, "stream": True}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    client.sendall(head.encode() + data)
    return client


def read_out(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


async def test_clients_that_do_not_read_hold_up_nobody(tiny: Server) -> None:
    """Their requests run to the end and free their rows; what they have not read waits in the gateway alone."""
    wide = body("slow", 30, logprobs=True, top_logprobs=20)
    before = tiny.gauge("pomona_scheduler_finished_total")
    slow: list[socket.socket] = []

    def all_ended() -> bool:
        return tiny.gauge("pomona_scheduler_finished_total") == before + len(slow)

    try:
        for _ in range(2):  # as many at a time as may wait; all of them stay connected and unread
            slow += [await asyncio.to_thread(unread, tiny.port, wide) for _ in range(ROOM)]
            what = "the requests of those who do not read have ended"
            await asyncio.to_thread(wait_until, all_ended, 120, what)
        heard = Heard()
        async with httpx.AsyncClient(timeout=60) as client:
            await listen(client, tiny.url, body("fast", 20), heard)
        assert (heard.completion_tokens, heard.finish, heard.error) == (20, "length", None)
        for each in slow:
            text = await asyncio.to_thread(read_out, each)
            assert text.startswith(b"HTTP/1.1 200")
            assert b"data: [DONE]" in text
            assert text.count(b'"logprobs":{') == 30
    finally:
        for each in slow:
            each.close()

"""A worker that is alive but does nothing is noticed by its lack of progress, killed, and its requests go on."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.support.server import Server, serving

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
TOKENS = 250
TIMEOUT_S = 3
TOML = f"[scheduler]\nprogress_timeout_s = {TIMEOUT_S}\n[gateway]\nkeepalive_s = 0.2\n"
WAIT_S = 60.0


def body(path: str, topic: str) -> dict[str, Any]:
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    prompt: Any = topic if path == RESPONSES else [{"role": "user", "content": topic}]
    return {
        "model": "tiny",
        "input" if path == RESPONSES else "messages": prompt,
        "temperature": 1,
        "seed": 7,
        limit: TOKENS,
        "ignore_eos": True,
    }


def text_of(path: str, answer: dict[str, Any]) -> str:
    """The text of an answer in one piece."""
    if path == CHAT:
        return str(answer["choices"][0]["message"]["content"])
    content = answer["output"][0]["content"] if path == RESPONSES else answer["content"]
    return str(content[0]["text"])


def streamed_text(path: str, lines: list[str]) -> str:
    """The joined deltas of a stream, which must not hold an error."""
    pieces = []
    for line in lines:
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        assert "error" not in event, event
        match path:
            case "/v1/chat/completions":
                pieces += [choice["delta"].get("content") or "" for choice in event["choices"]]
            case "/v1/responses":
                pieces += [event["delta"]] if event["type"] == "response.output_text.delta" else []
            case _:
                pieces += [event["delta"]["text"]] if event["type"] == "content_block_delta" else []
    return "".join(pieces)


async def hear(http: httpx.AsyncClient, path: str, topic: str, lines: list[str]) -> None:
    async with http.stream("POST", path, json=body(path, topic) | {"stream": True}) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            lines.append(line)


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {WAIT_S} s: {what}") from None


async def status_until(http: httpx.AsyncClient, path: str, status: int) -> dict[str, Any]:
    """Ask until the route answers with this status."""
    async with asyncio.timeout(WAIT_S):
        while (response := await http.get(path)).status_code != status:
            await asyncio.sleep(0.01)
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_frozen_worker_is_killed_and_its_streams_go_on(tmp_path: Path, tiny_model: Path) -> None:
    paths = (CHAT, RESPONSES, MESSAGES)
    with serving(tmp_path / "home", [tiny_model], toml=TOML) as server:
        alone = {
            topic: text_of(CHAT, await asyncio.to_thread(server.ask, body(CHAT, topic)))
            for topic in ("running", "waiting", "whole")
        }
        before = server.actor("worker:tiny")
        async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S) as http:
            running: dict[str, list[str]] = {path: [] for path in paths}
            waiting: dict[str, list[str]] = {path: [] for path in paths}
            tasks = [asyncio.create_task(hear(http, path, "running", lines)) for path, lines in running.items()]
            await until(lambda: all(streamed_text(*pair) for pair in running.items()), "all have begun")
            os.kill(before.pid, signal.SIGSTOP)
            tasks += [asyncio.create_task(hear(http, path, "waiting", lines)) for path, lines in waiting.items()]
            whole = {path: asyncio.create_task(http.post(path, json=body(path, "whole"))) for path in paths}
            for path in paths:
                alive = "event: ping" if path == MESSAGES else ": keepalive"
                await until(lambda p=path, a=alive: waiting[p].count(a) >= 3, f"{path} is kept alive")  # type: ignore[misc]
                assert streamed_text(path, waiting[path]) == ""
                assert running[path].count(alive) >= 2
            # Alive and ready, as far as anybody can tell; only its progress shows what is the matter.
            assert (await http.get("/health/live")).status_code == 200
            await worker_seen_silent(http)
            unready = await status_until(http, "/health/ready", 503)
            assert "loading" in unready["reason"]
            assert (await http.get("/health/live")).status_code == 200
            await asyncio.gather(*tasks)
            answers = {path: await task for path, task in whole.items()}
            await status_until(http, "/health/ready", 200)
        for path in paths:
            assert streamed_text(path, running[path]) == alone["running"]
            assert streamed_text(path, waiting[path]) == alone["waiting"]
            assert answers[path].status_code == 200
            assert text_of(path, answers[path].json()) == alone["whole"]
            assert "keepalive" not in answers[path].text
        after = server.actor("worker:tiny")
        assert (after.incarnation, after.state) == (before.incarnation + 1, "ready")
        assert after.pid != before.pid
        assert "scheduler.progress_timeout_s" in server.log
        assert_counted(server)


async def worker_seen_silent(http: httpx.AsyncClient) -> None:
    """Until status shows a worker with running requests that says nothing."""
    async with asyncio.timeout(WAIT_S):
        while True:
            status = (await http.get("/admin/status")).json()
            workers = status["scheduler"]["workers"]
            if workers and workers[0]["silent_s"] > TIMEOUT_S / 3:
                assert status["ready"] is True
                assert status["scheduler"]["running"] > 0
                return
            await asyncio.sleep(0.01)


def assert_counted(server: Server) -> None:
    assert server.gauge("pomona_scheduler_worker_deaths_total") == 1
    assert server.gauge("pomona_scheduler_resumed_total") >= 3
    assert server.settled()

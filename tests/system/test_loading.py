"""A model that takes its time to load, beside one that streams: its process is stopped while it loads."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.server import Server, serving, wait_until
from tests.support.streams import Heard, all_started, listen_all
from tests.support.tiny_model import build_tiny_model

SOON_S = 60.0


def body(model: str, topic: int, tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"Tell me of topic {topic}."}],
        "temperature": 1,
        "seed": 5,
        "max_tokens": tokens,
        "ignore_eos": True,
    }


def two_models(folder: Path) -> list[Path]:
    return [build_tiny_model(folder / name, seed=seed) for name, seed in (("there", 1), ("coming", 2))]


def loading_anew(server: Server) -> int:
    """The process of the second model's worker, stopped as it loads after the death of the one before."""
    incarnation = server.kill("worker:coming")

    def begun() -> bool:
        actor = server.actor("worker:coming")
        return actor.incarnation > incarnation and actor.state == "starting" and bool(actor.pid)

    wait_until(begun, SOON_S, "the worker starts again")
    pid = server.actor("worker:coming").pid
    os.kill(pid, signal.SIGSTOP)
    return pid


@asynccontextmanager
async def while_loading(server: Server) -> AsyncIterator[None]:
    """The second model loads until the end of the block."""
    pid = await asyncio.to_thread(loading_anew, server)
    try:
        states = {actor: server.actor(f"worker:{actor}").state for actor in ("there", "coming")}
        assert states == {"there": "ready", "coming": "starting"}
        yield
        assert server.actor("worker:coming").state == "starting"
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_streams_go_on_while_another_model_loads_and_its_requests_are_answered_then(tmp_path: Path) -> None:
    with serving(tmp_path / "home", two_models(tmp_path)) as server:
        before, meanwhile = body("there", 1, 400), [body("there", topic, 40) for topic in (2, 3)]
        waiting = [body("coming", topic, 20) for topic in range(3)]
        long, streams, answers = [Heard()], [Heard(), Heard()], [Heard() for _ in waiting]
        streaming = asyncio.create_task(listen_all(server.url, [before], long))
        await all_started(long, 2)
        async with while_loading(server):
            queued = asyncio.create_task(listen_all(server.url, waiting, answers))
            await asyncio.to_thread(
                wait_until, lambda: server.gauge("pomona_scheduler_waiting") == 3, SOON_S, "three wait for the model"
            )
            await listen_all(server.url, meanwhile, streams)
            await streaming
            assert [each.completion_tokens for each in (*long, *streams)] == [400, 40, 40]
            assert not queued.done()
            assert [each.deltas for each in answers] == [[], [], []]
        await queued
        for asked, heard in zip([before, *meanwhile, *waiting], [*long, *streams, *answers], strict=True):
            assert heard.error is None
            assert heard.text == server.ask(asked)["choices"][0]["message"]["content"]
        wait_until(server.settled, 5, "nothing runs or waits")


async def test_requests_for_a_model_that_loads_too_long_are_refused_and_nothing_else_is(tmp_path: Path) -> None:
    toml = "[scheduler]\nmax_waiting_s = 1\n"
    with serving(tmp_path / "home", two_models(tmp_path), toml=toml) as server:
        async with while_loading(server), httpx.AsyncClient(timeout=SOON_S) as client:
            late = [
                asyncio.create_task(client.post(f"{server.url}{path}", json=body("coming", topic, 20)))
                for topic, path in enumerate(("/v1/chat/completions", "/v1/chat/completions"))
            ]
            heard = [Heard()]
            await listen_all(server.url, [body("there", 1, 100)], heard)
            assert (heard[0].error, heard[0].completion_tokens) == (None, 100)
            for answer in await asyncio.gather(*late):
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
                error = answer.json()["error"]
                assert error["code"] == "waited_too_long"
                assert "scheduler.max_waiting_s" in error["message"]
        wait_until(lambda: server.actor("worker:coming").state == "ready", SOON_S, "the model is loaded")
        assert server.ask(body("coming", 1, 20))["usage"]["completion_tokens"] == 20

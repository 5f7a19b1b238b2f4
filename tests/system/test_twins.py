"""Two clients with the same long prompt at the same instant: it is read once, whoever of them goes away."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.server import Server, serving, wait_until
from tests.support.tiny_model import build_tiny_model

SOON_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Without a cache: what is read twice is computed twice."""
    folder = build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    with serving(tmp_path_factory.mktemp("home"), [folder], toml="[cache]\nenabled = false\nram_bytes = 0\n") as server:
        yield server


def body(topic: str, seed: int) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"{topic}: the river and the stone. " * 25}],
        "temperature": 1,
        "seed": seed,
        "max_tokens": 12,
        "ignore_eos": True,
    }


@asynccontextmanager
async def held_up(server: Server) -> AsyncIterator[None]:
    """What is asked within the block reaches the worker at one instant, at its end."""
    pid = server.actor("worker:tiny").pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def running(server: Server, count: int) -> None:
    await asyncio.to_thread(
        wait_until, lambda: server.gauge("pomona_scheduler_running") == count, SOON_S, f"{count} are with the worker"
    )


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200
    return str(answer.json()["choices"][0]["message"]["content"])


def computed(server: Server) -> float:
    return server.gauge("pomona_worker_prompt_tokens_total")


async def test_two_identical_prompts_at_once_are_read_once_and_both_answered(server: Server) -> None:
    bodies = [body("both", seed) for seed in (1, 2)]
    before = computed(server)
    async with httpx.AsyncClient(base_url=server.url, timeout=SOON_S) as client:
        async with held_up(server):
            asked = [asyncio.create_task(client.post("/v1/chat/completions", json=each)) for each in bodies]
            await running(server, 2)
        answers = await asyncio.gather(*asked)
    usages = [answer.json()["usage"] for answer in answers]
    (prompt,) = {usage["prompt_tokens"] for usage in usages}
    assert prompt > 256, "it is read in several forwards"
    assert sorted(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages) == [0, prompt - 1]
    assert computed(server) - before == prompt - 1
    assert [text_of(answer) for answer in answers] == [
        server.ask(each)["choices"][0]["message"]["content"] for each in bodies
    ]
    assert text_of(answers[0]) != text_of(answers[1])


@pytest.mark.parametrize("leaves", [0, 1], ids=["the first", "the second"])
async def test_a_client_that_leaves_takes_nothing_from_the_other(server: Server, leaves: int) -> None:
    bodies = [body(f"one of {leaves}", seed) for seed in (1, 2)]
    before = computed(server)
    async with httpx.AsyncClient(base_url=server.url, timeout=SOON_S) as client:
        async with held_up(server):
            asked = []
            for number, each in enumerate(bodies, 1):
                asked.append(asyncio.create_task(client.post("/v1/chat/completions", json=each)))
                await running(server, number)
            gone = asked.pop(leaves)
            gone.cancel()
            await asyncio.wait({gone})
        (answer,) = await asyncio.gather(*asked)
    assert computed(server) - before <= answer.json()["usage"]["prompt_tokens"] - 1
    stays = bodies[1 - leaves]
    assert text_of(answer) == server.ask(stays)["choices"][0]["message"]["content"]
    wait_until(server.settled, SOON_S, "nothing runs or waits")

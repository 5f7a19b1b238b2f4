"""Clients that go away are noticed at once, whatever their request is doing."""

import asyncio
from typing import Any

import httpx

from tests.support.server import Server, wait_until
from tests.support.streams import Heard, all_started, listen
from tests.system.conftest import MODEL

SOON_S = 3.0
"""A step or a prefill chunk takes well under a second; left alone, these requests would run for a minute."""


def long_answer(topic: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Count slowly from {topic}."}],
        "temperature": 0,
        "max_tokens": 2000,
        "ignore_eos": True,
    }


async def hang_up(tasks: list["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_four_streaming_and_four_waiting_clients_vanish(smollm2: Server) -> None:
    heard = [Heard() for _ in range(4)]
    async with httpx.AsyncClient(timeout=300) as client:
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(listen(client, smollm2.url, long_answer(index), each))
            for index, each in enumerate(heard)
        ]
        tasks += [
            asyncio.create_task(client.post(f"{smollm2.url}/v1/chat/completions", json=long_answer(10 + index)))
            for index in range(4)
        ]
        await all_started(heard, 2)
        await asyncio.to_thread(
            wait_until, lambda: smollm2.gauge("pomona_scheduler_running") == 8, 60, "all eight are running"
        )
        await hang_up(tasks)
        await asyncio.to_thread(wait_until, smollm2.settled, SOON_S, "all eight have stopped")


async def test_a_client_vanishes_during_prefill(smollm2: Server) -> None:
    body = long_answer(1)
    body["messages"][0]["content"] = "the river and the stone " * 600
    async with httpx.AsyncClient(timeout=300) as client:
        task: asyncio.Task[Any] = asyncio.create_task(client.post(f"{smollm2.url}/v1/chat/completions", json=body))
        await asyncio.to_thread(
            wait_until, lambda: smollm2.gauge("pomona_scheduler_running") == 1, 30, "it is in prefill"
        )
        await hang_up([task])
        await asyncio.to_thread(wait_until, smollm2.settled, SOON_S, "prefill has stopped")

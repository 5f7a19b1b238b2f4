"""A client that gives up on a long prompt and comes back finds most of it done, even by a new worker."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import Server, serving, wait_until
from tests.system.conftest import MODEL

TOML = "[worker]\nprefill_chunk = 16\n[cache]\nram_bytes = 0\nblock_bytes = 1048576\nmin_free_bytes = 0\n"
"""Chunks and blocks of 16 tokens."""

BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "The river, the stone, and what is between them. " * 36}],
    "temperature": 0,
    "max_tokens": 4,
}


@pytest.fixture(scope="module")
def server(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("home"), [smollm2_folder], toml=TOML) as server:
        yield server


def computed(server: Server) -> float:
    return server.gauge("pomona_worker_prompt_tokens_total")


async def test_who_gives_up_at_nine_tenths_of_a_prompt_has_them_next_time(server: Server) -> None:
    counted = server.ask({"model": MODEL, "messages": BODY["messages"]}, "/v1/messages/count_tokens")
    prompt = counted["input_tokens"]
    before = computed(server)
    async with httpx.AsyncClient(timeout=300) as client:
        task = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=BODY))
        await asyncio.to_thread(
            wait_until, lambda: computed(server) - before >= 0.9 * prompt, 120, "nine tenths of the prompt are computed"
        )
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(wait_until, server.settled, 10, "it has stopped")
    wasted = computed(server) - before
    assert wasted < prompt - 1, "it was still in prefill"
    blocks = wasted // 16
    await asyncio.to_thread(
        wait_until, lambda: server.gauge("pomona_cache_blocks") >= blocks, 30, "its blocks are stored"
    )
    incarnation = server.kill(f"worker:{MODEL}")
    await asyncio.to_thread(
        wait_until,
        lambda: server.actor(f"worker:{MODEL}")[1:] == (incarnation + 1, "ready"),
        120,
        "another worker is ready",
    )
    usage = (await asyncio.to_thread(server.ask, BODY))["usage"]
    assert usage["prompt_tokens"] == prompt
    assert usage["prompt_tokens_details"]["cached_tokens"] == 16 * blocks >= 0.9 * prompt - 16

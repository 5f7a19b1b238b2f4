"""Two models with work at once: they take turns on the device, and neither stops the other."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server import Server, serving, wait_until
from tests.support.streams import Heard, all_started, listen_all
from tests.support.tiny_model import build_tiny_model

TOML = "[scheduler]\nslice_s = 0.002\n"
CHATS = 3
TOKENS = 150
LONG = "The river, the stone and the long way home, number {}. " * 25


def chat(index: int) -> dict[str, Any]:
    return body("chatty", f"Tell me of topic {index}.", TOKENS)


def flood(index: int) -> dict[str, Any]:
    return body("flooded", LONG.format(*[index] * 25), 4)


def body(model: str, text: str, tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 1,
        "seed": 5,
        "max_tokens": tokens,
        "ignore_eos": True,
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    folders = [build_tiny_model(folder / name, seed=seed) for name, seed in (("chatty", 1), ("flooded", 2))]
    with serving(folder / "home", folders, toml=TOML) as server:
        yield server


def of_model(server: Server, metric: str, model: str) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=10).text
    found = re.search(rf'^{metric}{{model="{model}"[^}}]*}} (\S+)$', text, re.MULTILINE)
    assert found is not None, metric
    return float(found[1])


def turns(server: Server) -> list[float]:
    return [of_model(server, "pomona_worker_turns_total", model) for model in ("chatty", "flooded")]


def alone(server: Server, bodies: list[dict[str, Any]]) -> list[str]:
    return [server.ask(each)["choices"][0]["message"]["content"] for each in bodies]


def test_one_model_alone_with_work_takes_no_turns(server: Server) -> None:
    before = turns(server)
    for index in range(3):
        server.ask(chat(index))
        server.ask(flood(index))
    wait_until(server.settled, 5, "nothing runs or waits")
    assert turns(server) == before
    assert of_model(server, "pomona_worker_turn_seconds_total", "chatty") > 0
    assert of_model(server, "pomona_worker_turn_seconds_total", "flooded") > 0


async def test_a_flood_on_one_model_and_chats_on_another_go_on_in_turns(server: Server) -> None:
    bodies = [*(chat(index) for index in range(CHATS)), *(flood(index) for index in range(15))]
    heard = [Heard() for _ in bodies]
    before = turns(server)
    await listen_all(server.url, bodies, heard)
    assert [each.error for each in heard] == [None] * len(heard)
    chatty, flooded = (after - former for after, former in zip(turns(server), before, strict=True))
    assert min(chatty, flooded) >= 5
    assert [each.text for each in heard] == await asyncio.to_thread(alone, server, bodies)
    wait_until(server.settled, 5, "nothing runs or waits")


async def test_a_cancel_beside_a_flood_leaves_nothing_behind(server: Server) -> None:
    bodies = [flood(100 + index) for index in range(10)]
    heard, stopped = [Heard() for _ in bodies], Heard()
    flooding = asyncio.create_task(listen_all(server.url, bodies, heard))
    chatting = asyncio.create_task(listen_all(server.url, [chat(9)], [stopped]))
    await all_started([stopped], 2)
    chatting.cancel()
    await asyncio.wait({chatting})
    await flooding
    assert [each.finish for each in heard] == ["length"] * len(heard)
    wait_until(server.settled, 20, "nothing runs or waits")


@pytest.mark.parametrize("model", ["chatty", "flooded"])
async def test_the_death_of_a_worker_among_turns_stops_neither_model(server: Server, model: str) -> None:
    bodies = [*(chat(20 + index) for index in range(CHATS)), *(flood(200 + index) for index in range(12))]
    heard = [Heard() for _ in bodies]
    listening = asyncio.create_task(listen_all(server.url, bodies, heard))
    await all_started(heard[:CHATS], 3)
    incarnation = await asyncio.to_thread(server.kill, f"worker:{model}")
    await listening
    assert [each.error for each in heard] == [None] * len(heard)
    assert [each.text for each in heard] == await asyncio.to_thread(alone, server, bodies)
    wait_until(lambda: server.actor(f"worker:{model}").incarnation == incarnation + 1, 60, f"{model} is back")
    wait_until(server.settled, 5, "nothing runs or waits")


async def test_a_worker_that_hangs_in_its_turn_does_not_stop_the_other_model(server: Server) -> None:
    chats, floods = [chat(40 + index) for index in range(CHATS)], [flood(300 + index) for index in range(12)]
    chatted, flooded = [Heard() for _ in chats], [Heard() for _ in floods]
    chatting = asyncio.create_task(listen_all(server.url, chats, chatted))
    flooding = asyncio.create_task(listen_all(server.url, floods, flooded))
    await all_started(chatted, 3)
    pid = server.actor("worker:flooded").pid
    os.kill(pid, signal.SIGSTOP)
    try:
        await chatting
        assert not flooding.done()
    finally:
        os.kill(pid, signal.SIGCONT)
    await flooding
    assert [each.error for each in [*chatted, *flooded]] == [None] * (len(chats) + len(floods))
    assert [each.text for each in [*chatted, *flooded]] == await asyncio.to_thread(alone, server, [*chats, *floods])

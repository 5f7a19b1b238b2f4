"""Sixty-four prompts with hardly an answer, as a batch job sends them, beside the chats of somebody else."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server import Server, serving
from tests.support.streams import Heard, all_started, listen
from tests.support.tiny_model import build_tiny_model

JOBS = 64
CHATS = 3
TOKENS = 600
"""More than a chat gets while the batch runs: it goes on behind it."""
LEAST = 12
"""Pieces of text that each chat gets between the first and the last answer of the batch, whose prompts alone take 64
forwards. A piece may be more than one token."""
ROWS = 16
"""That a worker has by default."""
KEYS = {"people": "people-8d1f", "batch": "batch-3e7a"}
PROMPT = "Number {}: the river and the stone, the long way home. " * 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    folders = [build_tiny_model(folder / name, seed=seed) for name, seed in (("chatty", 1), ("other", 2))]
    toml = "[scheduler]\nslice_s = 0.002\n"
    environment = {"POMONA_API_KEYS": ",".join(KEYS.values())}
    with serving(folder / "home", folders, toml=toml, environment=environment) as server:
        yield server


def body(model: str, text: str, tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 1,
        "seed": 11,
        "max_tokens": tokens,
        "ignore_eos": True,
    }


def client_of(whose: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {KEYS[whose]}"}
    return httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None), headers=headers)


@pytest.mark.parametrize("model", ["chatty", "other"], ids=["on the same model", "on another model"])
async def test_chats_go_on_while_64_prompts_are_read(server: Server, model: str) -> None:
    chats = [body("chatty", f"Tell me of topic {number}.", TOKENS) for number in range(CHATS)]
    heard = [Heard() for _ in chats]
    async with client_of("people") as people, client_of("batch") as batch:
        chatting = [
            asyncio.create_task(listen(people, server.url, chat, each)) for chat, each in zip(chats, heard, strict=True)
        ]
        await all_started(heard, 2)
        seen: list[list[int]] = []

        async def job(number: int) -> httpx.Response:
            asked = body(model, PROMPT.replace("{}", str(number)), 1)
            answer = await batch.post(f"{server.url}/v1/chat/completions", json=asked)
            seen.append([len(each.deltas) for each in heard])
            return answer

        answers = await asyncio.gather(*(job(number) for number in range(JOBS)))
        assert [answer.status_code for answer in answers] == [200] * JOBS
        assert {answer.json()["usage"]["completion_tokens"] for answer in answers} == {1}
        assert min(answer.json()["usage"]["prompt_tokens"] for answer in answers) > 128
        for first, last in zip(seen[0], seen[-1], strict=True):
            assert last - first >= LEAST
        await asyncio.gather(*chatting)
        assert [(each.error, each.completion_tokens) for each in heard] == [(None, TOKENS)] * CHATS
        alone = await people.post(f"{server.url}/v1/chat/completions", json=chats[0])
        assert heard[0].text == alone.json()["choices"][0]["message"]["content"]


async def test_a_chat_that_arrives_behind_64_prompts_of_another_client_does_not_wait_for_them(server: Server) -> None:
    done: list[str] = []

    async def ask(client: httpx.AsyncClient, name: str, asked: dict[str, Any]) -> None:
        answer = await client.post(f"{server.url}/v1/chat/completions", json=asked)
        assert answer.status_code == 200
        done.append(name)

    async with client_of("people") as people, client_of("batch") as batch:
        jobs = [
            asyncio.create_task(ask(batch, "job", body("chatty", PROMPT.replace("{}", f"again {number}"), 1)))
            for number in range(JOBS)
        ]
        while not done:
            await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        await ask(people, "chat", body("chatty", "Tell me of the sea.", 2))
        await asyncio.gather(*jobs)
    assert done.index("chat") < JOBS - ROWS, "by age, all of the batch would have had its row first"
    assert len(done) == JOBS + 1

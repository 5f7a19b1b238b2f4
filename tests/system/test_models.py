"""Several models side by side, and what is kept between two runs of the server."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import Server, serving, wait_until
from tests.support.streams import Heard, listen_all
from tests.support.tiny_model import build_tiny_model


def body(model: str, text: str, tokens: int = 30) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
    }


async def test_two_models_run_side_by_side_each_in_its_own_worker(tmp_path: Path) -> None:
    folders = [build_tiny_model(tmp_path / name, seed=seed) for name, seed in (("first", 1), ("second", 2))]
    with serving(tmp_path / "home", folders) as server:
        names = ["first", "second"]
        listed = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert sorted(model["id"] for model in listed) == names
        alone = {name: server.ask(body(name, "hello"))["choices"][0]["message"]["content"] for name in names}
        assert alone["first"] != alone["second"]
        heard = [Heard() for _ in range(6)]
        await listen_all(server.url, [body(names[index % 2], "hello") for index in range(6)], heard)
        assert [each.text for each in heard] == [alone[names[index % 2]] for index in range(6)]
        pids = {server.actor(f"worker:{name}").pid for name in names}
        assert len(pids) == 2
        # The death of one model's worker is none of the other's business.
        before = server.actor("worker:second")
        await asyncio.to_thread(server.kill, "worker:first")
        wait_until(lambda: server.actor("worker:first")[1:] == (1, "ready"), 60, "the first model is back")
        assert server.actor("worker:second") == before
        assert server.ask(body("first", "hello"))["choices"][0]["message"]["content"] == alone["first"]


def cached_tokens(server: Server, text: str) -> tuple[str, int]:
    answer = server.ask(body("tiny", text, tokens=8))
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_prompt_is_read_once_even_across_a_restart(tmp_path: Path, tiny_model: Path) -> None:
    toml = "[cache]\nram_bytes = 0\nblock_bytes = 65536\nmin_free_bytes = 0\n"
    prompt = "The river and the stone. " * 60
    with serving(tmp_path / "home", [tiny_model], toml=toml) as server:
        cold, nothing = cached_tokens(server, prompt)
        assert nothing == 0
        wait_until(lambda: cached_tokens(server, prompt)[1] > 0, 10, "the prompt's blocks are stored")
        warm, some = cached_tokens(server, prompt)
        assert warm == cold
        other, different = cached_tokens(server, "A different beginning. " * 60)
        assert (other != cold, different) == (True, 0)
    with serving(tmp_path / "home", [tiny_model], toml=toml) as again:
        restarted, restored = cached_tokens(again, prompt)
        assert restarted == cold
        assert restored >= some


def test_the_beginning_that_two_prompts_share_is_read_once(tmp_path: Path, tiny_model: Path) -> None:
    with serving(tmp_path / "home", [tiny_model], toml="[cache]\nenabled = false\n") as server:
        first, nothing = cached_tokens(server, "One beginning, and then the river.")
        assert nothing == 0
        assert cached_tokens(server, "One beginning, and then the stone.")[1] > 10
        again, whole = cached_tokens(server, "One beginning, and then the river.")
        assert again == first
        assert whole > 20


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_next"])
async def test_models_whose_caches_are_not_plain_are_served_in_batches(tmp_path: Path, family: str) -> None:
    folder = build_tiny_model(tmp_path / "other", family)
    with serving(tmp_path / "home", [folder]) as server:
        bodies = [body("other", f"number {index} " * (1 + 9 * index), tokens=20 + index) for index in range(5)]
        heard = [Heard() for _ in bodies]
        await listen_all(server.url, bodies, heard)
        alone = [server.ask(each)["choices"][0]["message"]["content"] for each in bodies]
        assert [each.text for each in heard] == alone

"""Workers of the same weights share what is stored, whatever their models are called."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.support.server import Server, serving, wait_until
from tests.support.tiny_model import build_tiny_model

CACHE = "[cache]\nram_bytes = 0\nblock_bytes = 65536\nmin_free_bytes = 0\n"
TOML = """
{cache}
[[models]]
id = "first"
path = "{folder}"

[[models]]
id = "second"
path = "{folder}"

[[models]]
id = "stranger"
path = "{stranger}"
"""
PROMPT = "The river and the stone. " * 60


def ask(server: Server, model: str, text: str = PROMPT) -> tuple[str, int]:
    """The answer, and the prompt tokens that were not computed."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 8,
        "ignore_eos": True,
    }
    answer = server.ask(body)
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def stored(server: Server) -> float:
    return server.gauge("pomona_worker_stored_blocks_total")


def test_a_model_finds_what_another_of_the_same_weights_has_stored(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "weights", seed=1)
    toml = TOML.format(cache=CACHE, folder=folder, stranger=build_tiny_model(tmp_path / "others", seed=2))
    with serving(tmp_path / "home", [], toml=toml) as server:
        cold, nothing = ask(server, "first")
        assert nothing == 0
        wait_until(lambda: ask(server, "first")[1] > 0, 20, "the prompt's blocks are stored")
        before = stored(server)
        warm, some = ask(server, "second")
        assert (warm, some > 0) == (cold, True)
        assert ask(server, "stranger")[1] == 0
        assert server.actor("worker:first").pid != server.actor("worker:second").pid
        wait_until(lambda: stored(server) > before, 20, "the stranger stores blocks of its own")


def test_replicas_find_what_one_of_them_has_stored(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "weights", seed=1)
    toml = f'{CACHE}\n[[models]]\nid = "twice"\npath = "{folder}"\nreplicas = 2\n'
    with serving(tmp_path / "home", [], toml=toml) as server:
        cold, _ = ask(server, "twice")
        wait_until(lambda: stored(server) > 0 and ask(server, "twice")[1] > 0, 20, "the blocks are stored")
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _: ask(server, "twice"), range(8)))
        assert [text for text, _ in answers] == [cold] * 8
        assert min(cached for _, cached in answers) > 0
        text = httpx.get(f"{server.url}/metrics", timeout=10).text
        hits = re.findall(r"^pomona_worker_disk_hits_total{[^}]*} (\S+)$", text, re.MULTILINE)
        assert len(hits) == 2
        assert min(map(float, hits)) > 0, "both replicas"

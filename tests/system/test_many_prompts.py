"""Prompt after prompt, none like another: what is kept in memory and on disk stays within its budgets."""

import asyncio
import contextlib
import stat
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.server import serving
from tests.support.tiny_model import build_tiny_model

RAM_BYTES, DISK_BYTES = 1 << 20, 2 << 20
TOML = f"""
[cache]
folder = "kv"
ram_bytes = {RAM_BYTES}
max_bytes = {DISK_BYTES}
block_bytes = 65536
min_free_bytes = 0
"""
PROMPTS = 160
"""Each of some 350 tokens and 180 kB of KV: a dozen times what the disk may hold."""
GROWTH_BYTES = 64 << 20
"""Of the worker, between the first quarter and the end."""


def prompt(number: int) -> dict[str, Any]:
    return {"model": "tiny", "prompt": f"{number} rivers and {number} stones. " * 16, "max_tokens": 4, "temperature": 0}


def bytes_in(folder: Path) -> int:
    """Of all files but the lock; one that is gone meanwhile has none."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            facts = path.lstat()
            total += facts.st_size if stat.S_ISREG(facts.st_mode) and path.name != "lock" else 0
    return total


async def test_budgets_hold_whatever_comes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home, [build_tiny_model(tmp_path / "tiny")], toml=TOML) as server:
        worker = psutil.Process(server.actor("worker:tiny").pid)
        resident = 0
        async with httpx.AsyncClient(timeout=60) as client:
            for first in range(0, PROMPTS, 8):
                answers = await asyncio.gather(
                    *(client.post(f"{server.url}/v1/completions", json=prompt(first + one)) for one in range(8))
                )
                assert [answer.status_code for answer in answers] == [200] * 8
                assert server.gauge("pomona_worker_ram_bytes") <= RAM_BYTES
                assert server.gauge("pomona_cache_bytes") + server.gauge("pomona_cache_reserved_bytes") <= DISK_BYTES
                assert 0 < bytes_in(home / "kv") <= DISK_BYTES
                if first == PROMPTS // 4:
                    resident = worker.memory_info().rss
        assert server.gauge("pomona_worker_ram_bytes") > RAM_BYTES / 2
        assert server.gauge("pomona_cache_evicted_blocks_total") > 0
        assert worker.memory_info().rss - resident < GROWTH_BYTES
        again = server.ask(prompt(PROMPTS - 1), "/v1/completions")["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] > 0

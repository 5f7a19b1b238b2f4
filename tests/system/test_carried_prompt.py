"""A system prompt that one machine computed, carried to another one by the command line."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.server import POMONA, Server, serving, wait_until

TOML = "[cache]\nblock_bytes = 1\nram_bytes = 0\nmin_free_bytes = 0\n"
PROMPT = "You are kind and answer in one word. " * 8
BLOCK = 16
"""Tokens of the smallest block, which is what a size of one byte makes."""


def ask(server: Server) -> dict[str, Any]:
    answer = server.ask(
        {
            "model": "tiny",
            "messages": [{"role": "system", "content": PROMPT}, {"role": "user", "content": "Hi"}],
            "max_tokens": 4,
            "temperature": 0,
        }
    )
    return {"text": answer["choices"][0]["message"], **answer["usage"]}


def cache(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "POMONA_HOME": str(home)}
    return subprocess.run(
        [*POMONA, "cache", *arguments], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def test_a_stored_prompt_serves_another_machine(tiny_model: Path, tmp_path: Path) -> None:
    here, there, archive = tmp_path / "here", tmp_path / "there", tmp_path / "prompt.tar"
    with serving(here, [tiny_model], toml=TOML) as server:
        cold = ask(server)
        assert cold["prompt_tokens_details"]["cached_tokens"] == 0
        whole = (cold["prompt_tokens"] - 1) // BLOCK
        assert whole > 2
        wait_until(lambda: server.gauge("pomona_cache_blocks") >= whole, 20, "the blocks are stored")
        refused = cache(here, "clear", "--yes")
        assert refused.returncode == 1
        assert "is in use by process" in refused.stderr
        assert refused.stderr.count("\n") == 1
        blocks = json.loads(cache(here, "list", "--json").stdout)["blocks"]
        (last,) = [block for block in blocks if block["end"] == whole * BLOCK]
        exported = cache(here, "export", str(archive), "--key", last["key"][:16], "--json")
        assert json.loads(exported.stdout)["done"] == whole
        checked = cache(here, "verify", "--dry-run")
        assert (checked.returncode, "all of them are whole" in checked.stdout) == (0, True)

    there.mkdir()
    (there / "pomona.toml").write_text(TOML)
    imported = cache(there, "import", str(archive))
    assert imported.returncode == 0, imported.stderr
    assert imported.stdout == f"{whole} blocks stored: {there / 'cache'}\n"
    with serving(there, [tiny_model], toml=TOML) as server:
        warm = ask(server)
        assert warm["prompt_tokens_details"]["cached_tokens"] == whole * BLOCK
        assert warm["text"] == cold["text"]
        assert server.gauge("pomona_worker_disk_hits_total") == 1
        assert server.gauge("pomona_worker_disk_tokens_total") == whole * BLOCK
        assert server.gauge("pomona_worker_restore_seconds_total") > 0
    assert cache(there, "verify").returncode == 0

"""A disk that runs full under a server's cache: every request is served, one line says so, and the tier comes back."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server, serving, wait_until

DISK_BYTES = 2 << 20
CHUNK = bytes(16 << 10)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here, which needs root: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def filled(ballast: Path) -> Iterator[None]:
    """Somebody takes all room on the disk, and whatever is given back, for as long as this lasts."""
    done = threading.Event()

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            while not done.wait(0.0005):
                with contextlib.suppress(OSError):
                    while file.write(CHUNK):
                        pass

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        ballast.unlink()


def ask(server: Server, number: int) -> int:
    """A prompt of its own for each number from 100 on, of one whole block and some more; returns its cached tokens."""
    body: dict[str, Any] = {"model": "tiny", "prompt": f"{number} rivers and {number} stones. " * 8, "max_tokens": 2}
    usage = server.ask(body, "/v1/completions")["usage"]
    assert usage["completion_tokens"] > 0
    cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    return cached


def test_a_full_disk_stops_storing_and_nothing_else(tmp_path: Path, tiny_model: Path, small_disk: Path) -> None:
    folder = small_disk / "kv"
    toml = f'[cache]\nfolder = "{folder}"\nram_bytes = 0\nblock_bytes = 65536\nmin_free_bytes = 0\n'
    with serving(tmp_path / "home", [tiny_model], toml=toml) as server:
        numbers = iter(range(101, 10_000))

        def is_off() -> bool:
            ask(server, next(numbers))
            return "tier-off" in server.log

        wait_until(lambda: ask(server, 100) > 0, 20, "a block is stored")
        with filled(small_disk / "ballast"):
            wait_until(is_off, 60, "the tier is off")
            # What a write needs was evicted for it, and taken by the ballast: nothing is left that could go.
            wait_until(lambda: not list(folder.glob("blocks/*/*")), 60, "the last blocks are evicted")
            for _ in range(10):
                assert ask(server, next(numbers)) == 0
        wait_until(lambda: "tier-on" in server.log, 90, "the tier is on again")
        number = next(numbers)
        wait_until(lambda: ask(server, number) > 0, 20, "blocks are stored again")
        warnings = [line.split(" WARNING ")[1] for line in server.log.splitlines() if " WARNING " in line]
        assert [warning.split()[:2] for warning in warnings] == [["cache", "tier-off"], ["cache", "tier-on"]]
    assert list((folder / "tmp").iterdir()) == []

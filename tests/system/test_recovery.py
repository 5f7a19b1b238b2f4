"""What clients see when a process is killed: a pause, and nothing else."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.server import Server, serving, wait_until
from tests.support.streams import Heard, all_started, listen_all
from tests.system.conftest import MODEL

TOPICS = ("rivers", "bread", "the moon", "bees", "glass", "trains", "salt", "maps")
TOKENS = 24


def bodies() -> list[dict[str, Any]]:
    return [
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"Tell me a long story about {topic}."}],
            "temperature": 0,
            "max_tokens": TOKENS,
            "ignore_eos": True,
        }
        for topic in TOPICS
    ]


@pytest.fixture(scope="module")
def server(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One of its own: its actors are killed."""
    with serving(tmp_path_factory.mktemp("home"), [smollm2_folder]) as server:
        yield server


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> list[str]:
    """The texts of the eight answers, each asked for alone."""
    return [server.ask(body)["choices"][0]["message"]["content"] for body in bodies()]


@pytest.mark.parametrize("actor", [f"worker:{MODEL}", "scheduler", "cache"])
async def test_eight_streams_survive_the_death_of_an_actor(server: Server, undisturbed: list[str], actor: str) -> None:
    heard = [Heard() for _ in TOPICS]
    listening = asyncio.create_task(listen_all(server.url, bodies(), heard))
    await all_started(heard, 4)
    incarnation = await asyncio.to_thread(server.kill, actor)
    await listening
    assert [each.error for each in heard] == [None] * len(heard)
    assert [each.finish for each in heard] == ["length"] * len(heard)
    assert [each.completion_tokens for each in heard] == [TOKENS] * len(heard)
    assert [each.text for each in heard] == undisturbed
    wait_until(lambda: server.actor(actor).state == "ready", 60, f"{actor} is back")
    assert server.actor(actor).incarnation == incarnation + 1
    wait_until(server.settled, 5, "nothing runs or waits")


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path, tiny_model: Path) -> None:
    with serving(tmp_path / "home", [tiny_model]) as server:
        server.ask({"model": "tiny", "prompt": "a", "max_tokens": 2, "guided_regex": "a+"}, "/v1/completions")
        family = server.family()
        assert len(family) >= 6
        assert "pomona: grammar checker" in {process.cmdline()[0].strip() for process in family}
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(5)
        _, alive = psutil.wait_procs(family, timeout=5)
        assert alive == []
    with serving(tmp_path / "home", [tiny_model]) as again:
        assert again.ready()


def test_processes_say_what_they_are(server: Server) -> None:
    titles = {process.cmdline()[0].strip() for process in server.family()}
    assert titles >= {
        "pomona: supervisor",
        "pomona: gateway",
        "pomona: scheduler",
        "pomona: cache",
        f"pomona: worker {MODEL}",
    }

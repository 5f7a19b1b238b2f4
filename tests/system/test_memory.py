"""A budget of KV that is too small for all that is asked: answers wait for each other, and none is cut."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server import Server, serving, wait_until
from tests.support.streams import Heard, listen_all
from tests.support.tiny_model import build_tiny_model

STEP_BYTES = 256 * 512
"""KV of the tiny model, by the steps of 256 tokens in which it is reserved."""
STEPS = 11
CONTEXT = STEPS * 256
TOKENS = 1290
"""A short prompt and 1,024 tokens of the answer take five steps, and six once the answer is longer than 512: two begin,
and then one of them has to wait for the other."""


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = build_tiny_model(tmp_path_factory.mktemp("models") / "tiny", context=8192)
    toml = f"[worker]\nkv_bytes = {STEPS * STEP_BYTES}\n"
    with serving(tmp_path_factory.mktemp("home"), [folder], toml=toml) as server:
        yield server


def body(text: str, tokens: int = TOKENS) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "temperature": 1,
        "seed": 3,
        "max_tokens": tokens,
        "ignore_eos": True,
    }


async def test_answers_that_outgrow_the_memory_together_all_arrive_whole(tight: Server) -> None:
    bodies = [body(f"story {number}") for number in range(2)]
    heard = [Heard() for _ in bodies]
    await listen_all(tight.url, bodies, heard)
    assert tight.gauge("pomona_scheduler_preempted_total") > 0
    assert [(each.error, each.finish, each.completion_tokens) for each in heard] == [(None, "length", TOKENS)] * 2
    assert heard[1].text == tight.ask(bodies[1])["choices"][0]["message"]["content"]
    assert heard[0].text != heard[1].text
    wait_until(tight.settled, 5, "nothing runs or waits")
    assert tight.gauge("pomona_worker_kv_bytes") == 0


async def test_a_prompt_beyond_the_memory_is_refused_with_the_numbers_and_a_running_answer_goes_on(
    tight: Server,
) -> None:
    beyond = body("the river and the stone " * 400, tokens=5)
    running = [Heard()]
    async with httpx.AsyncClient(timeout=60) as client:
        for path, request in (
            ("/v1/chat/completions", beyond),
            ("/v1/chat/completions", beyond | {"stream": True}),
            ("/v1/chat/completions", body("short", tokens=CONTEXT)),
            ("/v1/messages", {name: beyond[name] for name in ("model", "messages", "max_tokens")}),
        ):
            answer = await client.post(f"{tight.url}{path}", json=request)
            assert answer.status_code == 400
            message = answer.json()["error"]["message"]
            assert str(CONTEXT) in message, message
            assert "prompt" in message
    await listen_all(tight.url, [body("short", tokens=20)], running)
    assert (running[0].error, running[0].completion_tokens) == (None, 20)


def test_a_context_that_the_memory_cuts_short_is_told_at_the_start(tight: Server) -> None:
    (line,) = [line for line in tight.log.splitlines() if "context-cut" in line]
    assert f"tokens={CONTEXT} of=8192" in line
    assert "worker.kv_bytes" in line

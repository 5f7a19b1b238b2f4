"""A prompt that is only read is there for the next request, whichever API either comes by; keys may be kept apart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import Server, serving

SYSTEM = "Answer in the tone of a patient gardener, and never in more than three sentences. " * 2
KEYS = ("first-secret", "second-secret")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    toml = "[gateway]\ncache_salt_per_key = true\n[cache]\nmin_free_bytes = 0\n"
    with serving(home, [tiny_model], toml=toml, environment={"POMONA_API_KEYS": ",".join(KEYS)}) as server:
        yield server


def asked(server: Server, path: str, body: dict[str, Any], key: str = KEYS[0]) -> dict[str, Any]:
    response = httpx.post(f"{server.url}{path}", json={"model": "tiny", **body}, headers={"x-api-key": key}, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def message(server: Server, text: str, max_tokens: int, key: str = KEYS[0]) -> dict[str, Any]:
    marked = {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}
    turns = [{"role": "user", "content": text}]
    return asked(server, "/v1/messages", {"system": [marked], "messages": turns, "max_tokens": max_tokens}, key)


def test_a_warm_up_is_read_by_the_next_request_of_the_same_key_only(guarded: Server) -> None:
    warm = message(guarded, "Hello.", 0)
    assert (warm["content"], warm["stop_reason"]) == ([], "max_tokens")
    prompt = warm["usage"]["cache_creation_input_tokens"]
    assert warm["usage"] == {
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_creation_input_tokens": prompt,
        "cache_read_input_tokens": 0,
    }
    other = message(guarded, "Hello.", 1, KEYS[1])["usage"]
    assert (other["cache_read_input_tokens"], other["cache_creation_input_tokens"]) == (0, prompt)
    mine = message(guarded, "Hello.", 1)["usage"]
    assert mine["cache_read_input_tokens"] >= prompt - 1
    assert mine["cache_read_input_tokens"] + mine["cache_creation_input_tokens"] + mine["input_tokens"] == prompt


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "chat " * 20}]}, "max_tokens"),
        ("/v1/completions", {"prompt": "completion " * 20}, "max_tokens"),
        ("/v1/responses", {"input": "response " * 20}, "max_output_tokens"),
    ],
)
def test_every_api_warms_up(guarded: Server, path: str, body: dict[str, Any], limit: str) -> None:
    cold = asked(guarded, path, {**body, limit: 0})["usage"]
    warm = asked(guarded, path, {**body, limit: 1})["usage"]
    details = "input_tokens_details" if path == "/v1/responses" else "prompt_tokens_details"
    counts = [usage[details]["cached_tokens"] for usage in (cold, warm)]
    assert counts[0] < counts[1]
    assert cold.get("completion_tokens", cold.get("output_tokens")) == 0


def test_no_key_is_in_the_log(guarded: Server) -> None:
    assert "secret" not in guarded.log

"""Thoughts with a budget and answers of a fixed form, from a random model, through a worker's death."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from tests.support.formats import DIALECTS
from tests.support.server import Server, serving
from tests.support.streams import Heard, listen

NAMES = {
    "harmony": DIALECTS["harmony"]._replace(opens="{{ '<|start|>assistant<|channel|>analysis<|message|>' }}"),
    "tags": DIALECTS["opened think"],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 200}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
BUDGET = 150


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    folders = [dialect.build(models / name) for name, dialect in NAMES.items()]
    with serving(tmp_path_factory.mktemp("home"), folders) as server:
        yield server


def body(name: str, seed: int) -> dict[str, Any]:
    return {
        "model": name,
        "messages": [{"role": "user", "content": "Who?"}],
        "temperature": 1.3,
        "seed": seed,
        "max_tokens": 900,
        "reasoning_budget_tokens": BUDGET,
        "response_format": FORM,
    }


@pytest.mark.parametrize("name", NAMES)
async def test_each_thought_keeps_to_its_budget_and_each_answer_to_its_form(server: Server, name: str) -> None:
    for seed in range(2):
        whole = await asyncio.to_thread(server.ask, body(name, seed))
        choice = whole["choices"][0]
        details = whole["usage"]["completion_tokens_details"]
        assert choice["finish_reason"] == "stop"
        assert 0 < details["reasoning_tokens"] <= BUDGET + 20, "the tokens of a close are few"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
        heard = Heard()
        async with httpx.AsyncClient(timeout=60) as client:
            await listen(client, server.url, body(name, seed), heard)
        assert (heard.text, heard.finish) == (choice["message"]["content"], "stop")


async def test_a_killed_worker_costs_neither_the_thought_nor_the_form(server: Server) -> None:
    name, seed = "harmony", 11
    expected = (await asyncio.to_thread(server.ask, body(name, seed)))["choices"][0]["message"]
    thought = answer = ""
    killed = False
    stream = {**body(name, seed), "stream": True}
    async with (
        httpx.AsyncClient(timeout=120) as client,
        client.stream("POST", f"{server.url}/v1/chat/completions", json=stream) as reply,
    ):
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                thought += choice["delta"].get("reasoning_content", "")
                answer += choice["delta"].get("content", "")
            if not killed and len(thought) > 20:
                server.kill(f"worker:{name}")
                killed = True
    assert killed
    assert thought == expected.get("reasoning_content", "")
    assert answer == expected["content"]

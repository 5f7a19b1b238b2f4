"""Calls of a random model through real processes: whatever it would rather write, and through a worker's death."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from tests.support.formats import DIALECTS
from tests.support.server import Server, serving
from tests.support.tiny_model import build_tiny_model
from tests.support.tool_templates import JSON_CALLS

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 60}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "array", "items": {"enum": ["today", "tomorrow"]}, "minItems": 1, "maxItems": 3}},
}
CLOCK: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"weather": SCHEMA, "clock": CLOCK}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
HARMONY = DIALECTS["harmony"]._replace(mentions="tools <|channel|>analysis")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    marks = ("<tool_call>", "</tool_call>")
    folders = [
        build_tiny_model(models / "json", chat_template=JSON_CALLS, marks=marks),
        HARMONY.build(models / "harmony"),
    ]
    with serving(tmp_path_factory.mktemp("home"), folders) as server:
        yield server


def body(name: str, seed: int, **fields: Any) -> dict[str, Any]:
    return {
        "model": name,
        "messages": [{"role": "user", "content": "Weather?"}],
        "temperature": 1.3,
        "seed": seed,
        "max_tokens": 900,
        "reasoning_budget_tokens": 40,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        **fields,
    }


async def streamed(server: Server, asked: dict[str, Any], kill: str = "") -> list[tuple[str, str]]:
    """Names and arguments, as their pieces come; the actor `kill` dies in the midst of them."""
    calls: list[tuple[str, str]] = []
    async with (
        httpx.AsyncClient(timeout=120) as client,
        client.stream("POST", f"{server.url}/v1/chat/completions", json=asked | {"stream": True}) as reply,
    ):
        async for line in reply.aiter_lines():
            for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                for piece in choice["delta"].get("tool_calls", ()):
                    if "id" in piece:
                        calls.append((piece["function"]["name"], ""))
                    name, arguments = calls[piece["index"]]
                    calls[piece["index"]] = (name, arguments + piece["function"]["arguments"])
            if kill and calls and len(calls[0][1]) > 12:
                server.kill(kill)
                kill = ""
    assert not kill
    return calls


@pytest.mark.parametrize("name", ["json", "harmony"])
async def test_a_forced_call_fits_its_tools_schema(server: Server, name: str) -> None:
    for seed in range(4):
        choice = (await asyncio.to_thread(server.ask, body(name, seed)))["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        (call,) = choice["message"]["tool_calls"]
        function = call["function"]
        jsonschema.validate(json.loads(function["arguments"]), SCHEMAS[function["name"]])
        assert await streamed(server, body(name, seed)) == [(function["name"], function["arguments"])]


async def test_a_killed_worker_costs_no_part_of_a_call(server: Server) -> None:
    named = {"tool_choice": {"type": "function", "function": {"name": "weather"}}}
    for seed in range(100, 103):
        calls = (await asyncio.to_thread(server.ask, body("json", seed, **named)))["choices"][0]["message"][
            "tool_calls"
        ]
        expected = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        assert await streamed(server, body("json", seed, **named), "worker:json") == expected

"""Answers of a fixed form over every API, from a random model that would say anything."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.support.server import Server, serving
from tests.support.streams import Heard, listen

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "tags", "age"],
    "additionalProperties": False,
}
TURNS: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Who?"}], "temperature": 1.5}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
ENDLESS = {"type": "integer", "multipleOf": 12345678}


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("home"), [tiny_model]) as server:
        yield server


def valid(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def body(seed: int, **more: Any) -> dict[str, Any]:
    return {**TURNS, "seed": seed, "max_tokens": 400, **more}


async def test_streamed_and_whole_answers_are_the_same_and_valid_on_all_apis(server: Server) -> None:
    for seed in range(4):
        chat = server.ask(body(seed, response_format=FORM))["choices"][0]
        assert chat["finish_reason"] == "stop"
        assert valid(chat["message"]["content"])
        heard = Heard()
        async with httpx.AsyncClient(timeout=60) as client:
            await listen(client, server.url, body(seed, response_format=FORM), heard)
        assert (heard.text, heard.finish) == (chat["message"]["content"], "stop")
        message = await asyncio.to_thread(
            server.ask,
            body(seed, output_config={"format": {"type": "json_schema", "schema": SCHEMA}}),
            "/v1/messages",
        )
        assert message["stop_reason"] == "end_turn"
        assert message["content"][0]["text"] == heard.text
        response = await asyncio.to_thread(
            server.ask,
            {
                "model": "tiny",
                "input": "Who?",
                "temperature": 1.5,
                "seed": seed,
                "max_output_tokens": 400,
                "text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}},
            },
            "/v1/responses",
        )
        assert response["status"] == "completed"
        assert response["output"][0]["content"][0]["text"] == heard.text


def test_other_languages_and_several_choices(server: Server) -> None:
    answer = server.ask(body(1, n=4, structured_outputs={"regex": "[0-9]{3}-[a-f]{2}"}))
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert all(len(text) == 6 and text[3] == "-" and text[:3].isdigit() for text in texts)
    assert len(set(texts)) > 1
    assert server.ask(body(2, guided_choice=["yes", "no"]))["choices"][0]["message"]["content"] in ("yes", "no")
    gbnf = 'root ::= item{2,3}\nitem ::= "- " [a-z]{1,5} ws "\\n"\nws ::= [ \\n]{0,2}'
    lines = server.ask(body(3, guided_grammar=gbnf))["choices"][0]["message"]["content"]
    assert lines.startswith("- ")
    assert lines.endswith("\n")
    json.loads(
        server.ask(body(4, response_format={"type": "json_object"}, max_tokens=2000))["choices"][0]["message"][
            "content"
        ]
    )


def test_an_answer_that_is_cut_off_says_so(server: Server) -> None:
    choice = server.ask(body(5, response_format=FORM, max_tokens=3))["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")


async def test_what_cannot_be_compiled_is_refused_while_streams_go_on(server: Server) -> None:
    """Each of them takes the longest that is allowed, or fails at once; the free stream beside them never waits."""
    forms = [{"type": "json_schema", "json_schema": {"name": "n", "schema": ENDLESS}}]
    forms += [
        {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "array", "uniqueItems": True, "minItems": n}},
        }
        for n in range(20)
    ]
    heard = Heard()
    async with httpx.AsyncClient(timeout=120) as client:
        free = asyncio.create_task(listen(client, server.url, body(6, ignore_eos=True, max_tokens=600), heard))
        answers = await asyncio.gather(
            *(client.post(f"{server.url}/v1/chat/completions", json=body(7, response_format=form)) for form in forms)
        )
        await free
    assert {answer.status_code for answer in answers} == {400}
    assert "to compile" in answers[0].json()["error"]["message"]
    assert all("'uniqueItems'" in answer.json()["error"]["message"] for answer in answers[1:])
    assert (heard.error, heard.completion_tokens) == (None, 600)
    assert valid(server.ask(body(8, response_format=FORM))["choices"][0]["message"]["content"])


def test_a_worker_that_dies_loses_no_form(server: Server) -> None:
    """The answer goes on in its grammar where it was broken off."""
    expected = server.ask(body(9, response_format=FORM))["choices"][0]["message"]["content"]
    incarnation = server.kill("worker:tiny")
    assert server.ask(body(9, response_format=FORM))["choices"][0]["message"]["content"] == expected
    assert server.actor("worker:tiny").incarnation > incarnation

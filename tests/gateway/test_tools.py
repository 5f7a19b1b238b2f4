"""Tools on three APIs: what the model is shown, what its worker is told, and what the client gets of its calls."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pomona.workers.messages import Constraint, Delta, Request, Tools
from tests.gateway.conftest import Gateway, GatewayFactory, JsonBody, events_of
from tests.support.scripted_source import Script, say, tell
from tests.support.tiny_model import build_tiny_model
from tests.support.tool_templates import HARMONY_CALLS, JSON_CALLS, PYTHONIC_CALLS

SCHEMA: JsonBody = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ARGUMENTS = '{"city": "Oslo <tool_call> é"}'
HEAD, TAIL = '{"name": "weather", "arguments": ', "}"

ANY = Constraint("json_schema", '{"type": "object"}')


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    models = tmp_path_factory.mktemp("callers")
    return {
        "json": build_tiny_model(models / "json", chat_template=JSON_CALLS),
        "pythonic": build_tiny_model(models / "pythonic", chat_template=PYTHONIC_CALLS),
        "harmony": build_tiny_model(models / "harmony", chat_template=HARMONY_CALLS),
    }


@pytest.fixture
def open_caller(open_gateway: GatewayFactory, folders: dict[str, Path]) -> Callable[..., Gateway]:
    def open_one(script: Script | None = None, dialect: str = "json") -> Gateway:
        return open_gateway(script, model_path=str(folders[dialect]), context=1024)

    return open_one


class Api(NamedTuple):
    """How one API says it."""

    path: str
    ask: JsonBody
    tool: Callable[..., JsonBody]
    schema: str
    """Path of a tool's schema, in its errors."""
    named: Callable[[str], JsonBody]
    required: Any


def _chat_tool(name: str, parameters: JsonBody = SCHEMA, **fields: Any) -> JsonBody:
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters, **fields}}


def _response_tool(name: str, parameters: JsonBody = SCHEMA, **fields: Any) -> JsonBody:
    return {"type": "function", "name": name, "description": "d", "parameters": parameters, **fields}


def _message_tool(name: str, parameters: JsonBody = SCHEMA, **fields: Any) -> JsonBody:
    return {"name": name, "description": "d", "input_schema": parameters, **fields}


CHAT = Api(
    "/v1/chat/completions",
    {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]},
    _chat_tool,
    "tools[{}].function.parameters",
    lambda name: {"type": "function", "function": {"name": name}},
    "required",
)
RESPONSES = Api(
    "/v1/responses",
    {"model": "tiny", "input": "Hi"},
    _response_tool,
    "tools[{}].parameters",
    lambda name: {"type": "function", "name": name},
    "required",
)
MESSAGES = Api(
    "/v1/messages",
    {"model": "tiny", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]},
    _message_tool,
    "tools[{}].input_schema",
    lambda name: {"type": "tool", "name": name, "disable_parallel_tool_use": True},
    {"type": "any"},
)
APIS = pytest.mark.parametrize("api", [CHAT, RESPONSES, MESSAGES], ids=["chat", "responses", "messages"])


async def post(gateway: Gateway, api: Api, **fields: Any) -> JsonBody:
    answer = await gateway.http.post(api.path, json=api.ask | fields)
    assert answer.status_code == 200, answer.text
    body: JsonBody = answer.json()
    return body


async def refused(gateway: Gateway, api: Api, **fields: Any) -> str:
    answer = await gateway.http.post(api.path, json=api.ask | fields)
    assert answer.status_code == 400, answer.text
    assert gateway.source.submitted == []
    message: str = answer.json()["error"]["message"]
    return message


async def shown(gateway: Gateway) -> str:
    """The prompt of the last request."""
    return await gateway.services.catalog.resolve("tiny").prompts.decode(gateway.source.submitted[-1].prompt)


def told(gateway: Gateway) -> Tools:
    tools = gateway.source.submitted[-1].tools
    assert tools is not None
    return tools


def schema_of(constraint: Constraint | None) -> Any:
    assert constraint is not None
    assert constraint.kind == "json_schema"
    return json.loads(constraint.text)


def call_of(name: str, arguments: JsonBody) -> JsonBody:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


@APIS
async def test_tools_are_shown_to_the_model_and_their_marks_told_to_the_worker(
    open_caller: Callable[..., Gateway], api: Api
) -> None:
    gateway = open_caller()
    await post(gateway, api, tools=[api.tool("weather")])
    rendered = json.dumps([_chat_tool("weather")])
    assert f"Tools: {rendered}" in await shown(gateway)
    constraint = told(gateway).constraint
    assert told(gateway) == Tools(open="<tool_call>", close="</tool_call>", constraint=constraint)
    assert schema_of(constraint) == call_of("weather", {"type": "object"})
    await post(gateway, api, tools=[api.tool("weather")], tool_choice={"type": "none"})
    assert "Tools" not in await shown(gateway)
    assert gateway.source.submitted[-1].tools is None


@APIS
async def test_a_forced_call_fits_the_schema_of_a_tool(open_caller: Callable[..., Gateway], api: Api) -> None:
    gateway = open_caller()
    tools = [api.tool("weather"), api.tool("clock", {})]
    await post(gateway, api, tools=tools, tool_choice=api.required)
    assert told(gateway).required
    assert told(gateway).parallel
    no_arguments = {"type": "object", "properties": {}}
    assert schema_of(told(gateway).constraint) == {
        "anyOf": [call_of("weather", SCHEMA), call_of("clock", no_arguments)]
    }
    await post(gateway, api, tools=tools, tool_choice=api.named("weather"))
    assert told(gateway).required
    assert not told(gateway).parallel
    assert schema_of(told(gateway).constraint) == call_of("weather", SCHEMA)
    assert "clock" in await shown(gateway)


@APIS
async def test_calls_of_strict_tools_fit_their_schema_when_they_are_made(
    open_caller: Callable[..., Gateway], api: Api
) -> None:
    gateway = open_caller()
    await post(gateway, api, tools=[api.tool("weather", strict=True), api.tool("clock")])
    assert not told(gateway).required
    assert schema_of(told(gateway).constraint) == {
        "anyOf": [call_of("weather", SCHEMA), call_of("clock", {"type": "object"})]
    }


async def test_only_allowed_tools_can_be_called_and_all_are_shown(open_caller: Callable[..., Gateway]) -> None:
    tools = [_chat_tool("weather"), _chat_tool("clock")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHAT.named("clock")]}}
    gateway = open_caller()
    await post(gateway, CHAT, tools=tools, tool_choice=choice)
    assert schema_of(told(gateway).constraint) == call_of("clock", {"type": "object"})
    assert "weather" in await shown(gateway)
    gateway = open_caller(dialect="harmony")
    await post(gateway, CHAT, tools=tools, tool_choice=choice)
    assert told(gateway) == Tools(named={"clock": ANY})
    gateway = open_caller(dialect="pythonic")
    await post(gateway, CHAT, tools=tools, tool_choice=choice)
    assert told(gateway).constraint is None
    assert "weather" not in await shown(gateway)


async def test_references_within_a_schema_move_with_it(open_caller: Callable[..., Gateway]) -> None:
    tree = {
        "type": "object",
        "properties": {"$ref": {"type": "string"}, "next": {"$ref": "#/$defs/node"}, "all": {"$ref": "#"}},
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    }
    gateway = open_caller()
    await post(gateway, CHAT, tools=[_chat_tool("weather"), _chat_tool("walk", tree)], tool_choice="required")
    found = schema_of(told(gateway).constraint)["anyOf"][1]["properties"]["arguments"]
    place = "#/anyOf/1/properties/arguments"
    assert found["properties"]["next"] == {"$ref": f"{place}/$defs/node"}
    assert found["properties"]["all"] == {"$ref": place}
    assert found["$defs"]["node"]["properties"]["next"] == {"$ref": f"{place}/$defs/node"}
    assert found["properties"]["$ref"] == {"type": "string"}
    await post(gateway, CHAT, tools=[_chat_tool("walk", tree)], tool_choice="required")
    alone = schema_of(told(gateway).constraint)["properties"]["arguments"]
    assert alone["properties"]["next"] == {"$ref": "#/properties/arguments/$defs/node"}


@APIS
async def test_a_schema_that_cannot_be_followed_is_named(open_caller: Callable[..., Gateway], api: Api) -> None:
    gateway = open_caller()
    wrong = {"type": "object", "properties": {"a": {"not": {}}}}
    message = await refused(gateway, api, tools=[api.tool("clock"), api.tool("f", wrong)], tool_choice=api.required)
    assert api.schema.format(1) in message
    assert "'not'" in message
    dead = {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}
    message = await refused(gateway, api, tools=[api.tool("clock"), api.tool("f", dead)], tool_choice=api.required)
    assert api.schema.format(1) in message
    # Where nothing is held to it, it is the model's to read.
    await post(gateway, api, tools=[api.tool("f", wrong), api.tool("g", dead)])


async def test_marks_that_name_the_tool(open_caller: Callable[..., Gateway]) -> None:
    gateway = open_caller(dialect="harmony")
    tools = [_chat_tool("weather", strict=True), _chat_tool("clock")]
    await post(gateway, CHAT, tools=tools)
    assert told(gateway).open == told(gateway).close == ""
    assert list(told(gateway).named) == ["weather", "clock"]
    assert schema_of(told(gateway).named["weather"]) == SCHEMA
    assert told(gateway).named["clock"] == ANY
    await post(gateway, CHAT, tools=tools, tool_choice=CHAT.named("clock"))
    assert list(told(gateway).named) == ["clock"]
    assert schema_of(told(gateway).named["clock"]) == SCHEMA
    assert told(gateway).required


@APIS
async def test_a_dialect_that_cannot_be_held_to_a_schema_says_so(open_caller: Callable[..., Gateway], api: Api) -> None:
    gateway = open_caller(dialect="pythonic")
    message = await refused(gateway, api, tools=[api.tool("weather")], tool_choice=api.required)
    assert "tool_choice" in message
    assert "pythonic" in message
    message = await refused(gateway, api, tools=[api.tool("clock"), api.tool("weather", strict=True)])
    assert api.schema.format(1) in message
    await post(gateway, api, tools=[api.tool("weather")])
    assert told(gateway) == Tools(open="<|tool_call_start|>", close="<|tool_call_end|>")


@APIS
async def test_a_model_that_takes_no_tools(gateway: Gateway, api: Api) -> None:
    message = await refused(gateway, api, tools=[api.tool("weather")], tool_choice=api.required)
    assert "tool_choice" in message
    assert "tiny" in message
    answer = await gateway.http.post(api.path, json=api.ask | {"tools": [api.tool("weather")]})
    assert answer.status_code == 200
    assert "not offered" in answer.headers["x-pomona-warning"]
    assert gateway.source.submitted[-1].tools is None
    assert "x-pomona-warning" not in (await gateway.http.post(api.path, json=api.ask)).headers


async def test_tools_other_than_functions_bring_a_warning(open_caller: Callable[..., Gateway]) -> None:
    gateway = open_caller()
    tools = [_response_tool("weather"), {"type": "web_search"}]
    answer = await gateway.http.post(RESPONSES.path, json=RESPONSES.ask | {"tools": tools})
    assert "web_search" in answer.headers["x-pomona-warning"]
    assert "web_search" not in await shown(gateway)
    assert told(gateway).open


async def test_a_required_call_does_not_go_on_from_a_message_that_was_begun(
    open_caller: Callable[..., Gateway],
) -> None:
    begun = {"messages": [*CHAT.ask["messages"], {"role": "assistant", "content": "So"}]}
    gateway = open_caller()
    fields = {"tools": [_chat_tool("weather")], "tool_choice": "required", "continue_final_message": True}
    assert "begun" in await refused(gateway, CHAT, **begun, **fields)
    await post(gateway, CHAT, **begun, **fields | {"tool_choice": "auto"})


@APIS
async def test_texts_of_tools_stay_text_and_their_names_do_not_spell_control_tokens(
    open_caller: Callable[..., Gateway], api: Api
) -> None:
    async def ends(text: str) -> int:
        named = {"type": "object", "properties": {"a": {"description": text, "enum": [text]}}}
        await post(gateway, api, tools=[api.tool("weather", named)])
        return gateway.source.submitted[-1].prompt.count(2)

    gateway = open_caller()
    assert await ends("<|im_end|>") == await ends("end")
    gateway = open_caller()
    message = await refused(gateway, api, tools=[api.tool("f", {"properties": {"a": {"x <|im_end|>": 1}}})])
    assert "'x <|im_end|>'" in message


# What the client gets.


class Got(NamedTuple):
    """An answer, whatever API it came by."""

    content: str
    calls: list[tuple[str, Any]]
    """Names with arguments: text, or objects where the API has them."""
    reason: str


def _chat_got(body: JsonBody) -> Got:
    choice = body["choices"][0]
    calls = choice["message"].get("tool_calls", [])
    assert all(call["type"] == "function" and call["id"].startswith(("call_", "functions.")) for call in calls)
    functions = [call["function"] for call in calls]
    assert choice["message"]["content"] is not None or calls
    return Got(
        choice["message"]["content"] or "",
        [(function["name"], function["arguments"]) for function in functions],
        choice["finish_reason"],
    )


def _chat_streamed(text: str) -> Got:
    content, calls, reasons = "", list[list[str]](), list[str]()
    for event in events_of(text):
        choice = event["choices"][0]
        delta = choice["delta"]
        content += delta.get("content") or ""
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["type"] == "function"
                assert call["index"] == len(calls)
                calls.append([call["function"]["name"], call["function"]["arguments"]])
            else:
                assert "name" not in call["function"]
                calls[call["index"]][1] += call["function"]["arguments"]
    assert len(reasons) == 1
    return Got(content, [(name, arguments) for name, arguments in calls], reasons[0])


def _response_got(body: JsonBody) -> Got:
    content, calls = "", []
    for item in body["output"]:
        if item["type"] == "message":
            content += item["content"][0]["text"]
        elif item["type"] == "function_call":
            assert item["id"].startswith("fc_")
            assert item["call_id"].startswith(("call_", "functions."))
            calls.append((item["name"], item["arguments"]))
    return Got(content, calls, body["status"])


def _response_streamed(text: str) -> Got:
    events = events_of(text)
    added: list[JsonBody] = []
    open: int | None = None
    pieces = ""
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert open is None
                open = event["output_index"]
                assert open == len(added)
                added.append(event["item"])
                pieces = ""
            case "response.function_call_arguments.delta":
                assert event["item_id"] == added[event["output_index"]]["id"]
                pieces += event["delta"]
            case "response.function_call_arguments.done":
                assert event["arguments"] == pieces
                assert event["name"] == added[event["output_index"]]["name"]
            case "response.output_item.done":
                assert event["output_index"] == open
                item = event["item"]
                assert (item["id"], item["type"]) == (added[-1]["id"], added[-1]["type"])
                assert item["type"] != "function_call" or item["arguments"] == pieces
                open = None
    assert open is None
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return _response_got(events[-1]["response"])


def _message_got(body: JsonBody) -> Got:
    blocks = body["content"]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    assert all(block["id"].startswith(("toolu_", "functions.")) for block in calls)
    content = "".join(block["text"] for block in blocks if block["type"] == "text")
    return Got(content, [(block["name"], block["input"]) for block in calls], body["stop_reason"])


def _message_streamed(text: str) -> Got:
    blocks: list[JsonBody] = []
    reason = ""
    for event in events_of(text):
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"] | {"json": ""})
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                blocks[-1]["text"] += event["delta"]["text"]
            case "content_block_delta" if event["delta"]["type"] == "input_json_delta":
                assert blocks[-1]["type"] == "tool_use"
                blocks[-1]["json"] += event["delta"]["partial_json"]
            case "message_delta":
                reason = event["delta"]["stop_reason"]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"])
    return _message_got({"content": blocks, "stop_reason": reason})


READERS: dict[str, tuple[Callable[[JsonBody], Got], Callable[[str], Got]]] = {
    CHAT.path: (_chat_got, _chat_streamed),
    RESPONSES.path: (_response_got, _response_streamed),
    MESSAGES.path: (_message_got, _message_streamed),
}


async def got(gateway: Gateway, api: Api, **fields: Any) -> Got:
    """The answer, the same in one piece and as a stream."""
    whole, streamed = READERS[api.path]
    found = whole(await post(gateway, api, **fields))
    answer = await gateway.http.post(api.path, json=api.ask | fields | {"stream": True})
    assert answer.status_code == 200
    assert streamed(answer.text) == found
    return found


def arguments_in(api: Api, text: str) -> Any:
    return json.loads(text) if api is MESSAGES else text


def calls(api: Api, *texts: str) -> list[tuple[str, Any]]:
    return [("weather", arguments_in(api, text)) for text in texts]


def pieces(text: str, call: int = 0, size: int = 3, name: str = "") -> list[Delta]:
    return [Delta("tool_call", text[at : at + size], call, name) for at in range(0, len(text), size)]


REASONS = {CHAT.path: "tool_calls", RESPONSES.path: "completed", MESSAGES.path: "tool_use"}
STOPPED = {CHAT.path: "stop", RESPONSES.path: "completed", MESSAGES.path: "end_turn"}
CUT = {CHAT.path: "length", RESPONSES.path: "incomplete", MESSAGES.path: "max_tokens"}


@APIS
@pytest.mark.parametrize("strict", [False, True])
async def test_a_call_is_told_in_each_apis_shape(open_caller: Callable[..., Gateway], api: Api, strict: bool) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces(HEAD + ARGUMENTS + TAIL)))
    found = await got(gateway, api, tools=[api.tool("weather", strict=strict)])
    assert found == Got("", calls(api, ARGUMENTS), REASONS[api.path])


@APIS
async def test_calls_stand_behind_what_was_thought_and_said(open_caller: Callable[..., Gateway], api: Api) -> None:
    def script(request: Request) -> Any:
        said = (Delta("reasoning", "hm"), Delta("content", "Let me "), Delta("content", "see."))
        second = HEAD + '{"city": "Rom"}' + TAIL
        return tell(request, *said, *pieces(HEAD + ARGUMENTS + TAIL), *pieces(second, call=1, size=1000))

    gateway = open_caller(script)
    found = await got(gateway, api, tools=[api.tool("weather")])
    assert found == Got("Let me see.", calls(api, ARGUMENTS, '{"city": "Rom"}'), REASONS[api.path])


@APIS
async def test_a_tool_that_its_mark_names(open_caller: Callable[..., Gateway], api: Api) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces(ARGUMENTS, name="weather")), "harmony")
    assert await got(gateway, api, tools=[api.tool("weather")]) == Got("", calls(api, ARGUMENTS), REASONS[api.path])


@APIS
async def test_a_dialect_that_a_parser_reads(open_caller: Callable[..., Gateway], api: Api) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces("[weather(city='Oslo')]")), "pythonic")
    found = await got(gateway, api, tools=[api.tool("weather")])
    assert found == Got("", calls(api, '{"city": "Oslo"}'), REASONS[api.path])


@APIS
@pytest.mark.parametrize("dialect", ["json", "pythonic"])
async def test_what_is_no_call_is_told_as_text(open_caller: Callable[..., Gateway], api: Api, dialect: str) -> None:
    gateway = open_caller(lambda request: tell(request, Delta("content", "So: "), *pieces("not a call")), dialect)
    found = await got(gateway, api, tools=[api.tool("weather")])
    assert found == Got("So: not a call", [], STOPPED[api.path])


@APIS
async def test_a_call_that_is_cut_off_before_its_name_is_text(open_caller: Callable[..., Gateway], api: Api) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces('{"name": "wea'), finish="length"))
    found = await got(gateway, api, tools=[api.tool("weather")])
    assert found == Got('{"name": "wea', [], CUT[api.path])


@APIS
async def test_whole_calls_before_the_cut_are_calls(open_caller: Callable[..., Gateway], api: Api) -> None:
    def script(request: Request) -> Any:
        return tell(request, *pieces(HEAD + ARGUMENTS + TAIL), *pieces('{"na', call=1), finish="length")

    found = await got(open_caller(script), api, tools=[api.tool("weather")])
    assert found == Got('{"na', calls(api, ARGUMENTS), CUT[api.path])


@pytest.mark.parametrize("api", [CHAT, RESPONSES], ids=["chat", "responses"])
async def test_arguments_that_are_cut_off_are_told_as_far_as_they_came(
    open_caller: Callable[..., Gateway], api: Api
) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces(HEAD + ARGUMENTS[:15]), finish="length"))
    found = await got(gateway, api, tools=[api.tool("weather")])
    assert found == Got("", [("weather", ARGUMENTS[:15])], CUT[api.path])
    if api is RESPONSES:
        body = await post(gateway, api, tools=[api.tool("weather")])
        assert body["output"][-1]["status"] == "incomplete"


async def test_a_cut_call_of_anthropics_has_the_members_that_are_whole(open_caller: Callable[..., Gateway]) -> None:
    written = HEAD + '{"city": "Oslo", "at": "no'
    gateway = open_caller(lambda request: tell(request, *pieces(written), finish="length"))
    body = await post(gateway, MESSAGES, tools=[_message_tool("weather")])
    assert body["stop_reason"] == "max_tokens"
    assert body["content"] == [body["content"][0] | {"type": "tool_use", "input": {"city": "Oslo"}}]
    answer = await gateway.http.post(
        MESSAGES.path, json=MESSAGES.ask | {"tools": [_message_tool("weather")], "stream": True}
    )
    deltas = [event["delta"] for event in events_of(answer.text) if event["type"] == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in deltas) == '{"city": "Oslo", "at": "no'


async def test_choices_have_calls_of_their_own(open_caller: Callable[..., Gateway]) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces(HEAD + ARGUMENTS + TAIL)))
    body = await post(gateway, CHAT, tools=[_chat_tool("weather")], n=2)
    ids = [choice["message"]["tool_calls"][0]["id"] for choice in body["choices"]]
    assert len(set(ids)) == 2


FUNCTIONS = {"functions": [{"name": "weather", "parameters": SCHEMA}]}


async def test_functions_are_called_as_clients_of_old_know_it(open_caller: Callable[..., Gateway]) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces(HEAD + ARGUMENTS + TAIL)))
    body = await post(gateway, CHAT, **FUNCTIONS, function_call={"name": "weather"})
    assert told(gateway).required
    assert not told(gateway).parallel
    choice = body["choices"][0]
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": ARGUMENTS}
    assert choice["message"]["content"] is None
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"
    answer = await gateway.http.post(CHAT.path, json=CHAT.ask | FUNCTIONS | {"stream": True})
    parts = [event["choices"][0] for event in events_of(answer.text)]
    told_parts = [part["delta"]["function_call"] for part in parts if "function_call" in part["delta"]]
    assert told_parts[0] == {"name": "weather", "arguments": ""}
    assert "".join(part["arguments"] for part in told_parts) == ARGUMENTS
    assert parts[-1]["finish_reason"] == "function_call"
    assert "functions" in await refused(open_caller(), CHAT, **FUNCTIONS, tools=[_chat_tool("weather")])


# Conversations with calls in them.

HISTORY = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


async def test_calls_and_results_are_rendered_with_their_names(open_caller: Callable[..., Gateway]) -> None:
    gateway = open_caller()
    asked = {"role": "user", "content": "Hi"}
    called = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    histories: list[tuple[Api, JsonBody]] = [
        (
            CHAT,
            {
                "messages": [
                    asked,
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "call_1", "type": "function", "function": called}],
                    },
                    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
                ]
            },
        ),
        (
            CHAT,
            {
                "messages": [
                    asked,
                    {"role": "assistant", "content": None, "function_call": called},
                    {"role": "function", "name": "weather", "content": "rain"},
                ]
            },
        ),
        (
            RESPONSES,
            {
                "input": [
                    asked,
                    {"type": "function_call", "id": "fc_1", "call_id": "call_1", **called},
                    {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
                ]
            },
        ),
        (
            MESSAGES,
            {
                "messages": [
                    asked,
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
                        ],
                    },
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}]},
                ]
            },
        ),
    ]
    prompts = set()
    for api, fields in histories:
        await post(gateway, api, **fields, tools=[api.tool("weather")])
        prompts.add(await shown(gateway))
    assert len(prompts) == 1
    prompt = prompts.pop()
    assert f"<|im_start|>assistant\n{HISTORY}<|im_end|>" in prompt
    assert "<|im_start|>tool weather\nrain<|im_end|>" in prompt


async def test_an_earlier_response_with_a_call_is_continued(open_caller: Callable[..., Gateway]) -> None:
    def script(request: Request) -> Any:
        called = pieces(HEAD + '{"city": "Oslo"}' + TAIL)
        return tell(request, *called) if len(gateway.source.submitted) == 1 else say(request, "Rain.")

    gateway = open_caller(script)
    first = await post(gateway, RESPONSES, tools=[_response_tool("weather")])
    call = first["output"][0]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    fields = {"input": [output], "previous_response_id": first["id"], "tools": [_response_tool("weather")]}
    second = await post(gateway, RESPONSES, **fields)
    assert second["output"][0]["content"][0]["text"] == "Rain."
    assert f"{HISTORY}<|im_end|>\n<|im_start|>tool weather\nrain<|im_end|>" in await shown(gateway)


async def test_tools_count_as_input(open_caller: Callable[..., Gateway]) -> None:
    gateway = open_caller()
    body = {key: value for key, value in MESSAGES.ask.items() if key != "max_tokens"}
    tools = {"tools": [_message_tool("weather")]}
    counts = [
        (await gateway.http.post("/v1/messages/count_tokens", json=body | fields)).json()["input_tokens"]
        for fields in ({}, tools)
    ]
    await post(gateway, MESSAGES, **tools)
    assert counts[0] < counts[1] == len(gateway.source.submitted[-1].prompt)


async def test_a_stream_is_kept_alive_while_a_call_is_held_back(
    open_caller: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens come all the time, so there is no silence to be heard of them; the clock goes a second with each look."""
    monkeypatch.setattr("pomona.gateway.serving.now", itertools.count().__next__)
    body = CHAT.ask | {"tools": [_chat_tool("weather")], "stream": True}
    kept = []
    for written in (pieces("[weather(city='Oslo')]", size=1), [Delta("content", "a")] * 22):
        gateway = open_caller(lambda request, written=written: tell(request, *written), "pythonic")
        kept.append((await gateway.http.post(CHAT.path, json=body)).text.count(": keepalive"))
    assert kept[0] > 1
    assert kept[1] == 0

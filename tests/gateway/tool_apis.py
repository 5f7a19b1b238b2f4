"""How three APIs offer tools and tell calls, for the tests of them."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from pomona.workers.messages import Constraint, Delta, Tools
from tests.gateway.conftest import Gateway, JsonBody, events_of

SCHEMA: JsonBody = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ARGUMENTS = '{"city": "Oslo <tool_call> é"}'
HEAD, TAIL = '{"name": "weather", "arguments": ', "}"

ANY = Constraint("json_schema", '{"type": "object"}')


class Api(NamedTuple):
    """How one API says it."""

    path: str
    ask: JsonBody
    tool: Callable[..., JsonBody]
    schema: str
    """Path of a tool's schema, in its errors."""
    named: Callable[[str], JsonBody]
    required: Any


def chat_tool(name: str, parameters: JsonBody = SCHEMA, **fields: Any) -> JsonBody:
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters, **fields}}


def response_tool(name: str, parameters: JsonBody = SCHEMA, **fields: Any) -> JsonBody:
    return {"type": "function", "name": name, "description": "d", "parameters": parameters, **fields}


def message_tool(name: str, parameters: JsonBody = SCHEMA, **fields: Any) -> JsonBody:
    return {"name": name, "description": "d", "input_schema": parameters, **fields}


CHAT = Api(
    "/v1/chat/completions",
    {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]},
    chat_tool,
    "tools[{}].function.parameters",
    lambda name: {"type": "function", "function": {"name": name}},
    "required",
)
RESPONSES = Api(
    "/v1/responses",
    {"model": "tiny", "input": "Hi"},
    response_tool,
    "tools[{}].parameters",
    lambda name: {"type": "function", "name": name},
    "required",
)
MESSAGES = Api(
    "/v1/messages",
    {"model": "tiny", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]},
    message_tool,
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


def message_got(body: JsonBody) -> Got:
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
    return message_got({"content": blocks, "stop_reason": reason})


READERS: dict[str, tuple[Callable[[JsonBody], Got], Callable[[str], Got]]] = {
    CHAT.path: (_chat_got, _chat_streamed),
    RESPONSES.path: (_response_got, _response_streamed),
    MESSAGES.path: (message_got, _message_streamed),
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

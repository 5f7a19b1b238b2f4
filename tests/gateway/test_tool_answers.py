"""Calls of tools on three APIs: what the client gets, in one piece and as a stream."""

import itertools
from typing import Any

import pytest

from pomona.workers.messages import Delta, Request
from tests.gateway.conftest import GatewayFactory, events_of
from tests.gateway.tool_apis import (
    APIS,
    ARGUMENTS,
    CHAT,
    CUT,
    HEAD,
    MESSAGES,
    REASONS,
    RESPONSES,
    SCHEMA,
    STOPPED,
    TAIL,
    Api,
    Got,
    calls,
    chat_tool,
    got,
    message_tool,
    pieces,
    post,
    refused,
    told,
)
from tests.support.scripted_source import tell


@APIS
@pytest.mark.parametrize("strict", [False, True])
async def test_a_call_is_told_in_each_apis_shape(open_caller: GatewayFactory, api: Api, strict: bool) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces(HEAD + ARGUMENTS + TAIL)))
    found = await got(gateway, api, tools=[api.tool("weather", strict=strict)])
    assert found == Got("", calls(api, ARGUMENTS), REASONS[api.path])


@APIS
async def test_calls_stand_behind_what_was_thought_and_said(open_caller: GatewayFactory, api: Api) -> None:
    def script(request: Request) -> Any:
        said = (Delta("reasoning", "hm"), Delta("content", "Let me "), Delta("content", "see."))
        second = HEAD + '{"city": "Rom"}' + TAIL
        return tell(request, *said, *pieces(HEAD + ARGUMENTS + TAIL), *pieces(second, call=1, size=1000))

    gateway = open_caller(script)
    found = await got(gateway, api, tools=[api.tool("weather")])
    assert found == Got("Let me see.", calls(api, ARGUMENTS, '{"city": "Rom"}'), REASONS[api.path])


@APIS
async def test_a_tool_that_its_mark_names(open_caller: GatewayFactory, api: Api) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces(ARGUMENTS, name="weather")), "harmony")
    assert await got(gateway, api, tools=[api.tool("weather")]) == Got("", calls(api, ARGUMENTS), REASONS[api.path])


@APIS
async def test_a_dialect_that_a_parser_reads(open_caller: GatewayFactory, api: Api) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces("[weather(city='Oslo')]")), "pythonic")
    found = await got(gateway, api, tools=[api.tool("weather")])
    assert found == Got("", calls(api, '{"city": "Oslo"}'), REASONS[api.path])


@APIS
@pytest.mark.parametrize("dialect", ["json", "pythonic"])
async def test_what_is_no_call_is_told_as_text(open_caller: GatewayFactory, api: Api, dialect: str) -> None:
    gateway = open_caller(lambda request: tell(request, Delta("content", "So: "), *pieces("not a call")), dialect)
    found = await got(gateway, api, tools=[api.tool("weather")])
    assert found == Got("So: not a call", [], STOPPED[api.path])


@APIS
async def test_a_call_that_is_cut_off_before_its_name_is_text(open_caller: GatewayFactory, api: Api) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces('{"name": "wea'), finish="length"))
    found = await got(gateway, api, tools=[api.tool("weather")])
    assert found == Got('{"name": "wea', [], CUT[api.path])


@APIS
async def test_whole_calls_before_the_cut_are_calls(open_caller: GatewayFactory, api: Api) -> None:
    def script(request: Request) -> Any:
        return tell(request, *pieces(HEAD + ARGUMENTS + TAIL), *pieces('{"na', call=1), finish="length")

    found = await got(open_caller(script), api, tools=[api.tool("weather")])
    assert found == Got('{"na', calls(api, ARGUMENTS), CUT[api.path])


@pytest.mark.parametrize("api", [CHAT, RESPONSES], ids=["chat", "responses"])
async def test_arguments_that_are_cut_off_are_told_as_far_as_they_came(open_caller: GatewayFactory, api: Api) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces(HEAD + ARGUMENTS[:15]), finish="length"))
    found = await got(gateway, api, tools=[api.tool("weather")])
    assert found == Got("", [("weather", ARGUMENTS[:15])], CUT[api.path])
    if api is RESPONSES:
        body = await post(gateway, api, tools=[api.tool("weather")])
        assert body["output"][-1]["status"] == "incomplete"


async def test_a_cut_call_of_anthropics_has_the_members_that_are_whole(open_caller: GatewayFactory) -> None:
    written = HEAD + '{"city": "Oslo", "at": "no'
    gateway = open_caller(lambda request: tell(request, *pieces(written), finish="length"))
    body = await post(gateway, MESSAGES, tools=[message_tool("weather")])
    assert body["stop_reason"] == "max_tokens"
    assert body["content"] == [body["content"][0] | {"type": "tool_use", "input": {"city": "Oslo"}}]
    answer = await gateway.http.post(
        MESSAGES.path, json=MESSAGES.ask | {"tools": [message_tool("weather")], "stream": True}
    )
    deltas = [event["delta"] for event in events_of(answer.text) if event["type"] == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in deltas) == '{"city": "Oslo", "at": "no'


async def test_choices_have_calls_of_their_own(open_caller: GatewayFactory) -> None:
    gateway = open_caller(lambda request: tell(request, *pieces(HEAD + ARGUMENTS + TAIL)))
    body = await post(gateway, CHAT, tools=[chat_tool("weather")], n=2)
    ids = [choice["message"]["tool_calls"][0]["id"] for choice in body["choices"]]
    assert len(set(ids)) == 2


FUNCTIONS = {"functions": [{"name": "weather", "parameters": SCHEMA}]}


async def test_functions_are_called_as_clients_of_old_know_it(open_caller: GatewayFactory) -> None:
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
    assert "functions" in await refused(open_caller(), CHAT, **FUNCTIONS, tools=[chat_tool("weather")])


async def test_a_stream_is_kept_alive_while_a_call_is_held_back(
    open_caller: GatewayFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens come all the time, so there is no silence to be heard of them; the clock goes a second with each look."""
    monkeypatch.setattr("pomona.gateway.serving.now", itertools.count().__next__)
    body = CHAT.ask | {"tools": [chat_tool("weather")], "stream": True}
    kept = []
    for written in (pieces("[weather(city='Oslo')]", size=1), [Delta("content", "a")] * 22):
        gateway = open_caller(lambda request, written=written: tell(request, *written), "pythonic")
        kept.append((await gateway.http.post(CHAT.path, json=body)).text.count(": keepalive"))
    assert kept[0] > 1
    assert kept[1] == 0

"""Tools on three APIs: what the model is shown, what its worker is told, and what is refused."""

import json

from pomona.workers.messages import Tools
from tests.gateway.conftest import Gateway, GatewayFactory
from tests.gateway.tool_apis import (
    ANY,
    APIS,
    CHAT,
    RESPONSES,
    SCHEMA,
    Api,
    call_of,
    chat_tool,
    post,
    refused,
    response_tool,
    schema_of,
    shown,
    told,
)


@APIS
async def test_tools_are_shown_to_the_model_and_their_marks_told_to_the_worker(
    open_caller: GatewayFactory, api: Api
) -> None:
    gateway = open_caller()
    await post(gateway, api, tools=[api.tool("weather")])
    rendered = json.dumps([chat_tool("weather")])
    assert f"Tools: {rendered}" in await shown(gateway)
    constraint = told(gateway).constraint
    assert told(gateway) == Tools(open="<tool_call>", close="</tool_call>", constraint=constraint)
    assert schema_of(constraint) == call_of("weather", {"type": "object"})
    await post(gateway, api, tools=[api.tool("weather")], tool_choice={"type": "none"})
    assert "Tools" not in await shown(gateway)
    assert gateway.source.submitted[-1].tools is None


@APIS
async def test_a_forced_call_fits_the_schema_of_a_tool(open_caller: GatewayFactory, api: Api) -> None:
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
async def test_calls_of_strict_tools_fit_their_schema_when_they_are_made(open_caller: GatewayFactory, api: Api) -> None:
    gateway = open_caller()
    await post(gateway, api, tools=[api.tool("weather", strict=True), api.tool("clock")])
    assert not told(gateway).required
    assert schema_of(told(gateway).constraint) == {
        "anyOf": [call_of("weather", SCHEMA), call_of("clock", {"type": "object"})]
    }


async def test_only_allowed_tools_can_be_called_and_all_are_shown(open_caller: GatewayFactory) -> None:
    tools = [chat_tool("weather"), chat_tool("clock")]
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


async def test_references_within_a_schema_move_with_it(open_caller: GatewayFactory) -> None:
    tree = {
        "type": "object",
        "properties": {"$ref": {"type": "string"}, "next": {"$ref": "#/$defs/node"}, "all": {"$ref": "#"}},
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    }
    gateway = open_caller()
    await post(gateway, CHAT, tools=[chat_tool("weather"), chat_tool("walk", tree)], tool_choice="required")
    found = schema_of(told(gateway).constraint)["anyOf"][1]["properties"]["arguments"]
    place = "#/anyOf/1/properties/arguments"
    assert found["properties"]["next"] == {"$ref": f"{place}/$defs/node"}
    assert found["properties"]["all"] == {"$ref": place}
    assert found["$defs"]["node"]["properties"]["next"] == {"$ref": f"{place}/$defs/node"}
    assert found["properties"]["$ref"] == {"type": "string"}
    await post(gateway, CHAT, tools=[chat_tool("walk", tree)], tool_choice="required")
    alone = schema_of(told(gateway).constraint)["properties"]["arguments"]
    assert alone["properties"]["next"] == {"$ref": "#/properties/arguments/$defs/node"}


@APIS
async def test_a_schema_that_cannot_be_followed_is_named(open_caller: GatewayFactory, api: Api) -> None:
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


async def test_marks_that_name_the_tool(open_caller: GatewayFactory) -> None:
    gateway = open_caller(dialect="harmony")
    tools = [chat_tool("weather", strict=True), chat_tool("clock")]
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
async def test_a_dialect_that_cannot_be_held_to_a_schema_says_so(open_caller: GatewayFactory, api: Api) -> None:
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


async def test_tools_other_than_functions_bring_a_warning(open_caller: GatewayFactory) -> None:
    gateway = open_caller()
    tools = [response_tool("weather"), {"type": "web_search"}]
    answer = await gateway.http.post(RESPONSES.path, json=RESPONSES.ask | {"tools": tools})
    assert "web_search" in answer.headers["x-pomona-warning"]
    assert "web_search" not in await shown(gateway)
    assert told(gateway).open


async def test_a_required_call_does_not_go_on_from_a_message_that_was_begun(
    open_caller: GatewayFactory,
) -> None:
    begun = {"messages": [*CHAT.ask["messages"], {"role": "assistant", "content": "So"}]}
    gateway = open_caller()
    fields = {"tools": [chat_tool("weather")], "tool_choice": "required", "continue_final_message": True}
    assert "begun" in await refused(gateway, CHAT, **begun, **fields)
    await post(gateway, CHAT, **begun, **fields | {"tool_choice": "auto"})


@APIS
async def test_texts_of_tools_stay_text_and_their_names_do_not_spell_control_tokens(
    open_caller: GatewayFactory, api: Api
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

"""Conversations with calls in them, on three APIs."""

from typing import Any

from pomona.workers.messages import Request
from tests.gateway.conftest import GatewayFactory, JsonBody
from tests.gateway.tool_apis import (
    CHAT,
    HEAD,
    MESSAGES,
    RESPONSES,
    TAIL,
    Api,
    message_tool,
    pieces,
    post,
    response_tool,
    shown,
)
from tests.support.scripted_source import say, tell

HISTORY = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


async def test_calls_and_results_are_rendered_with_their_names(open_caller: GatewayFactory) -> None:
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


async def test_an_earlier_response_with_a_call_is_continued(open_caller: GatewayFactory) -> None:
    def script(request: Request) -> Any:
        called = pieces(HEAD + '{"city": "Oslo"}' + TAIL)
        return tell(request, *called) if len(gateway.source.submitted) == 1 else say(request, "Rain.")

    gateway = open_caller(script)
    first = await post(gateway, RESPONSES, tools=[response_tool("weather")])
    call = first["output"][0]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    fields = {"input": [output], "previous_response_id": first["id"], "tools": [response_tool("weather")]}
    second = await post(gateway, RESPONSES, **fields)
    assert second["output"][0]["content"][0]["text"] == "Rain."
    assert f"{HISTORY}<|im_end|>\n<|im_start|>tool weather\nrain<|im_end|>" in await shown(gateway)


async def test_tools_count_as_input(open_caller: GatewayFactory) -> None:
    gateway = open_caller()
    body = {key: value for key, value in MESSAGES.ask.items() if key != "max_tokens"}
    tools = {"tools": [message_tool("weather")]}
    counts = [
        (await gateway.http.post("/v1/messages/count_tokens", json=body | fields)).json()["input_tokens"]
        for fields in ({}, tools)
    ]
    await post(gateway, MESSAGES, **tools)
    assert counts[0] < counts[1] == len(gateway.source.submitted[-1].prompt)

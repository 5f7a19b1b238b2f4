import pytest

from tests.gateway.conftest import CONTEXT, Gateway, GatewayFactory, JsonBody, events_of
from tests.support.scripted_source import say

URL = "/v1/messages"
ASK: JsonBody = {"model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}]}


async def prompt_of(gateway: Gateway, **fields: object) -> tuple[int, ...]:
    response = await gateway.http.post(URL, json=ASK | fields)
    assert response.status_code == 200, response.text
    return gateway.source.submitted[-1].prompt


async def test_the_billing_line_is_dropped(gateway: Gateway) -> None:
    line = "x-anthropic-billing-header: cc_version=2; cch={}"
    plain = await prompt_of(gateway, system="Be kind.")
    assert await prompt_of(gateway, system=line.format(1) + "\nBe kind.") == plain
    blocks = [
        {"type": "text", "text": line.format(2)},
        {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
    ]
    assert await prompt_of(gateway, system=blocks) == plain


async def test_a_client_that_sends_many_fields_is_served(gateway: Gateway) -> None:
    body = ASK | {
        "context_management": {"edits": []},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "u"},
        "cache_control": {"type": "ephemeral"},
        "tools": [{"name": "f", "input_schema": {}, "defer_loading": True, "eager_input_streaming": True}],
        "tool_choice": {"type": "auto"},
        "something_new": 1,
    }
    response = await gateway.http.post(URL + "?beta=true", json=body, headers={"anthropic-beta": "x"})
    assert response.status_code == 200
    assert "tools" in response.headers["x-pomona-warning"]


@pytest.mark.parametrize("version", ["2023-01-01", "2023-06-01", "2099-12-31", "soon"])
@pytest.mark.parametrize("key", [{"authorization": "Bearer first"}, {"x-api-key": "first"}])
async def test_every_version_and_either_key_header_are_taken_alike(
    open_gateway: GatewayFactory, version: str, key: dict[str, str]
) -> None:
    gateway = open_gateway(api_keys=("first",))
    headers = {"anthropic-version": version, **key}
    served = await gateway.http.post(URL + "?beta=true", json=ASK, headers=headers)
    refused = await gateway.http.post(URL + "?beta=true", json=ASK | {"messages": []}, headers=headers)
    assert (served.status_code, served.json()["type"]) == (200, "message")
    assert (refused.status_code, set(refused.json())) == (400, {"type", "error", "request_id"})


async def test_turns_of_one_role_are_merged(gateway: Gateway) -> None:
    two = [{"role": "user", "content": "a"}, {"role": "ctx", "content": [{"type": "text", "text": "b"}]}]
    assert await prompt_of(gateway, messages=two) == await prompt_of(
        gateway, messages=[{"role": "user", "content": "a\nb"}]
    )


async def test_a_trailing_assistant_turn_is_continued(gateway: Gateway) -> None:
    begun = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer is ("}]
    prompt = await prompt_of(gateway, messages=begun)
    chat = {"model": "tiny", "messages": begun, "continue_final_message": True}
    await gateway.http.post("/v1/chat/completions", json=chat)
    assert gateway.source.submitted[-1].prompt == prompt


async def test_tool_use_and_results_become_turns(gateway: Gateway) -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "42"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Looking."},
        {"role": "tool", "content": "42"},
        {"role": "user", "content": "And?"},
    ]
    prompt = await prompt_of(gateway, messages=messages)
    await gateway.http.post("/v1/chat/completions", json={"model": "tiny", "messages": chat})
    assert gateway.source.submitted[-1].prompt == prompt


async def test_no_tokens_at_all_is_legal(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(lambda request: say(request))
    answer = (await gateway.http.post(URL, json=ASK | {"max_tokens": 0})).json()
    assert gateway.source.submitted[0].limits.max_tokens == 0
    assert answer["content"] == []
    assert answer["stop_reason"] == "max_tokens"


async def test_a_stop_sequence_is_reported(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(lambda request: say(request, "a", stop="END"))
    answer = (await gateway.http.post(URL, json=ASK | {"stop_sequences": ["END"]})).json()
    assert gateway.source.submitted[0].limits.stop == ("END",)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")


async def test_a_limit_beyond_the_context_is_cut_and_told(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(lambda request: say(request, "a", finish="length"))
    answer = (await gateway.http.post(URL, json=ASK | {"max_tokens": 32_000})).json()
    request = gateway.source.submitted[0]
    assert request.limits.max_tokens == CONTEXT - len(request.prompt)
    assert answer["stop_reason"] == "model_context_window_exceeded"
    short = (await gateway.http.post(URL, json=ASK | {"max_tokens": 5})).json()
    assert short["stop_reason"] == "max_tokens"


async def test_a_stream_starts_with_message_start_and_a_ping(gateway: Gateway) -> None:
    text = (await gateway.http.post(URL, json=ASK | {"stream": True})).text
    names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert names[:2] == ["message_start", "ping"]
    assert "[DONE]" not in text
    start = events_of(text)[0]["message"]
    assert start["content"] == []
    assert start["usage"]["input_tokens"] == len(gateway.source.submitted[0].prompt)
    assert start["usage"]["output_tokens"] == 0


async def test_counting_needs_no_limit_and_runs_nothing(gateway: Gateway) -> None:
    body = {"model": "tiny", "messages": ASK["messages"], "tools": [], "thinking": {"type": "disabled"}}
    counted = await gateway.http.post(URL + "/count_tokens", json=body)
    assert gateway.source.submitted == []
    assert counted.json() == {"input_tokens": len(await prompt_of(gateway))}


async def test_a_field_is_named_once(gateway: Gateway) -> None:
    message = (await gateway.http.post(URL, json=ASK | {"max_tokens": -1})).json()["error"]["message"]
    assert message.startswith("max_tokens: ")
    assert message.count("max_tokens") == 1
    message = (await gateway.http.post(URL, json=ASK | {"model": "nobody"})).json()["error"]["message"]
    assert message.startswith("model: ")


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_format": {"type": "json_schema"}}, "output_format"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
        ({"system": [{"type": "image"}]}, "system[0]"),
    ],
)
async def test_what_cannot_be_served_is_named_in_anthropics_shape(
    gateway: Gateway, field: JsonBody, names: str
) -> None:
    response = await gateway.http.post(URL, json=ASK | field)
    body = response.json()
    assert response.status_code == 400, response.text
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert names in body["error"]["message"]
    assert body["request_id"] == response.headers["request-id"]


async def test_a_missing_limit_is_named(gateway: Gateway) -> None:
    response = await gateway.http.post(URL, json={"model": "tiny", "messages": ASK["messages"]})
    assert response.status_code == 400
    assert "max_tokens is required" in response.json()["error"]["message"]

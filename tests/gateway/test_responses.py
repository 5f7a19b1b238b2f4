import json

import pytest

from pomona.workers.messages import Request
from tests.gateway.conftest import Gateway, GatewayFactory, JsonBody, events_of
from tests.support.scripted_source import Step, fail, say

URL = "/v1/responses"
ASK: JsonBody = {"model": "tiny", "input": "Hi"}


async def test_events_are_numbered_and_every_item_is_done_before_the_end(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(lambda request: say(request, "reasoning:hm", "He", "llo"))
    text = (await gateway.http.post(URL, json=ASK | {"stream": True})).text
    events = events_of(text)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")] == [
        event["type"] for event in events
    ]
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    final = events[-1]["response"]
    assert final["output"] == [events[7]["item"], events[14]["item"]]
    assert final["output"][1]["content"][0]["text"] == "Hello"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_answer_is_incomplete(gateway: Gateway, stream: bool) -> None:
    answer = await gateway.http.post(URL, json=ASK | {"max_output_tokens": 1, "stream": stream})
    if stream:
        last = events_of(answer.text)[-1]
        assert last["type"] == "response.incomplete"
        response = last["response"]
    else:
        response = answer.json()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["output"][0]["content"][0]["text"] == "Hello"


async def test_an_empty_answer_still_has_its_message(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(lambda request: say(request, ""))
    response = (await gateway.http.post(URL, json=ASK)).json()
    assert response["output"][0]["content"][0]["text"] == ""


async def test_an_error_behind_the_head_is_response_failed(open_gateway: GatewayFactory) -> None:
    def script(request: Request) -> list[Step]:
        return [*say(request, "So")[:1], fail(request, "non-finite logits")]

    gateway = open_gateway(script)
    events = events_of((await gateway.http.post(URL, json=ASK | {"stream": True})).text)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["message"] == "non-finite logits"


async def test_instructions_and_developer_message_are_one_system_turn(gateway: Gateway) -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "B"}]},
        {"role": "user", "content": "Hi"},
    ]
    await gateway.http.post(URL, json={"model": "tiny", "instructions": "A", "input": items})
    chat = [{"role": "system", "content": "A\n\nB"}, {"role": "user", "content": "Hi"}]
    await gateway.http.post("/v1/chat/completions", json={"model": "tiny", "messages": chat})
    first, second = gateway.source.submitted
    assert first.prompt == second.prompt


async def test_a_coding_agents_request_is_served(gateway: Gateway) -> None:
    body = {
        "model": "tiny",
        "instructions": "You are an agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List files"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "call_id": "call_1", "name": "shell", "arguments": '{"command": ["ls"]}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
            {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "ok"}]},
        ],
        "tools": [
            {"type": "function", "name": "shell", "parameters": {}, "strict": False},
            {"type": "custom", "name": "patch"},
            {"type": "web_search"},
            {"type": "namespace", "name": "mcp", "tools": []},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
    }
    answer = await gateway.http.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    assert events_of(answer.text)[-1]["type"] == "response.completed"
    assert "custom, namespace, web_search" in answer.headers["x-pomona-warning"]


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": NaN}', '{"a": ' * 5000, "[1]", ""])
async def test_arguments_that_are_no_json_object_stay_text(gateway: Gateway, arguments: str) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": arguments}
    items = [call, {"type": "function_call_output", "call_id": "call_1", "output": "42"}]
    answer = await gateway.http.post(URL, json=ASK | {"input": items})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("stream", [False, True])
async def test_an_earlier_response_is_continued(gateway: Gateway, stream: bool) -> None:
    answer = await gateway.http.post(URL, json=ASK | {"stream": stream})
    first = events_of(answer.text)[-1]["response"] if stream else answer.json()
    await gateway.http.post(URL, json=ASK | {"input": "And?", "previous_response_id": first["id"]})
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello world"},
        {"role": "user", "content": "And?"},
    ]
    await gateway.http.post("/v1/chat/completions", json={"model": "tiny", "messages": chat})
    _, second, third = gateway.source.submitted
    assert second.prompt == third.prompt


async def test_stored_responses_are_fetched_deleted_and_forgotten(gateway: Gateway) -> None:
    first = (await gateway.http.post(URL, json=ASK)).json()
    assert (await gateway.http.get(f"{URL}/{first['id']}")).json() == first
    assert (await gateway.http.delete(f"{URL}/{first['id']}")).json()["deleted"] is True
    assert (await gateway.http.get(f"{URL}/{first['id']}")).status_code == 404
    assert (await gateway.http.delete(f"{URL}/{first['id']}")).status_code == 404
    kept = [(await gateway.http.post(URL, json=ASK)).json()["id"] for _ in range(4)]
    found = [(await gateway.http.get(f"{URL}/{id}")).status_code for id in kept]
    assert found == [404, 200, 200, 200]


async def test_what_is_not_stored_cannot_be_continued(gateway: Gateway) -> None:
    first = (await gateway.http.post(URL, json=ASK | {"store": False})).json()
    answer = await gateway.http.post(URL, json=ASK | {"previous_response_id": first["id"]})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "previous_response_not_found"


async def test_a_response_belongs_to_its_key(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(api_keys=("alice", "bob"))
    alice, bob = ({"authorization": f"Bearer {key}"} for key in ("alice", "bob"))
    first = (await gateway.http.post(URL, json=ASK, headers=alice)).json()
    assert (await gateway.http.get(f"{URL}/{first['id']}", headers=alice)).status_code == 200
    assert (await gateway.http.get(f"{URL}/{first['id']}", headers=bob)).status_code == 404


async def test_logprobs_come_with_the_deltas_and_the_item(gateway: Gateway) -> None:
    body = ASK | {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": True}
    events = events_of((await gateway.http.post(URL, json=body)).text)
    deltas = [entry for event in events if event["type"].endswith("output_text.delta") for entry in event["logprobs"]]
    assert [entry["token"] for entry in deltas] == ["Hello", " world"]
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == deltas


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"input": 7}, "input"),
        ({"input": [7]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ],
)
async def test_what_cannot_be_served_is_named(gateway: Gateway, field: JsonBody, param: str) -> None:
    response = await gateway.http.post(URL, json=ASK | field)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert json.dumps(response.json()["error"]["message"])


async def test_what_follows_a_warm_up_begins_with_its_very_tokens(gateway: Gateway) -> None:
    warm = {"model": "tiny", "input": "Remember this.", "max_output_tokens": 0}
    first = (await gateway.http.post(URL, json=warm)).json()
    await gateway.http.post(URL, json={"model": "tiny", "input": "Go on.", "previous_response_id": first["id"]})
    turns = [{"role": "user", "content": "Remember this."}, {"role": "user", "content": "Go on."}]
    await gateway.http.post(URL, json={"model": "tiny", "input": turns})
    assert gateway.source.submitted[1].prompt == gateway.source.submitted[2].prompt

import json

import pytest

from pomona.workers.messages import Request
from tests.gateway.conftest import CONTEXT, Gateway, GatewayFactory, JsonBody, events_of
from tests.support.scripted_source import Step, say

CHAT = "/v1/chat/completions"
ASK: JsonBody = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


def one_of(gateway: Gateway) -> Request:
    (request,) = gateway.source.submitted
    return request


async def prompt_of(gateway: Gateway, messages: list[object], **fields: object) -> tuple[int, ...]:
    response = await gateway.http.post(CHAT, json={"model": "tiny", "messages": messages, **fields})
    assert response.status_code == 200, response.text
    return gateway.source.submitted[-1].prompt


async def test_max_completion_tokens_wins_over_max_tokens(gateway: Gateway) -> None:
    answer = await gateway.http.post(CHAT, json=ASK | {"max_tokens": 50, "max_completion_tokens": 1})
    choice = answer.json()["choices"][0]
    assert choice["message"]["content"] == "Hello"
    assert choice["finish_reason"] == "length"


async def test_without_a_limit_the_answer_may_fill_the_context(gateway: Gateway) -> None:
    await gateway.http.post(CHAT, json=ASK)
    request = one_of(gateway)
    assert request.limits.max_tokens == CONTEXT - len(request.prompt)


@pytest.mark.parametrize(
    ("stop", "want"), [(".", (".",)), ([".", "x", "y", "z"], (".", "x", "y", "z")), ([], ()), (None, ())]
)
async def test_stop_is_a_string_or_a_list(gateway: Gateway, stop: object, want: tuple[str, ...]) -> None:
    await gateway.http.post(CHAT, json=ASK | {"stop": stop})
    assert one_of(gateway).limits.stop == want


async def test_explicit_zeros_and_empties_are_honoured(open_gateway: GatewayFactory, tuned_folder: str) -> None:
    gateway = open_gateway(model_path=tuned_folder)
    zeros = {
        "temperature": 0,
        "top_p": 0.0,
        "top_k": 0,
        "min_p": 0,
        "seed": 0,
        "logit_bias": {},
        "stop": [],
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "max_tokens": 0,
    }
    await gateway.http.post(CHAT, json=ASK | zeros)
    request = one_of(gateway)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (0, 0, 0, 0, 0)
    assert request.limits.max_tokens == 0


async def test_the_models_own_defaults_fill_what_is_not_given(open_gateway: GatewayFactory, tuned_folder: str) -> None:
    gateway = open_gateway(model_path=tuned_folder)
    await gateway.http.post(CHAT, json=ASK)
    sampling = one_of(gateway).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.95, 20)


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({}, (0.0, 0.1)),
        ({"xtc_probability": 0.5}, (0.5, 0.1)),
        ({"xtc_probability": 1, "xtc_threshold": 0}, (1.0, 0.0)),
        ({"xtc_probability": 0, "xtc_threshold": 0.5}, (0.0, 0.5)),
    ],
)
async def test_top_choices_are_left_out_above_a_tenth_unless_told_otherwise(
    gateway: Gateway, fields: JsonBody, want: tuple[float, float]
) -> None:
    await gateway.http.post(CHAT, json=ASK | fields)
    sampling = one_of(gateway).sampling
    assert (sampling.xtc_probability, sampling.xtc_threshold) == want


async def test_without_defaults_of_its_own_a_model_samples_plainly(gateway: Gateway) -> None:
    await gateway.http.post(CHAT, json=ASK)
    sampling = one_of(gateway).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert sampling.repetition_penalty == 1.0


async def test_every_sampler_field_reaches_the_worker(gateway: Gateway) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "xtc_probability": 0.75,
        "xtc_threshold": 0.125,
        "repetition_penalty": 1.1,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.25,
        "logit_bias": {"7": -100, "8": 1.5},
        "seed": 12,
        "min_tokens": 3,
        "ignore_eos": True,
        "stop_token_ids": [5, 6],
        "priority": -2,
        "cache_salt": "tenant",
        "max_tokens": 9,
    }
    await gateway.http.post(CHAT, json=ASK | fields)
    request = one_of(gateway)
    s, limits = request.sampling, request.limits
    assert (s.temperature, s.top_p, s.top_k, s.min_p, s.seed) == (0.5, 0.9, 40, 0.05, 12)
    assert (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) == (1.1, -0.5, 0.25)
    assert (s.xtc_probability, s.xtc_threshold) == (0.75, 0.125)
    assert s.logit_bias == {7: -100.0, 8: 1.5}
    assert (limits.min_tokens, limits.ignore_eos, limits.stop_token_ids, limits.max_tokens) == (3, True, (5, 6), 9)
    assert (request.priority, request.cache_salt) == (-2, "tenant")


@pytest.mark.parametrize(("seed", "want"), [(-1, 2**64 - 1), (2**64, 0), (2**64 + 5, 5), (2**63, 2**63)])
async def test_any_integer_is_a_seed(gateway: Gateway, seed: int, want: int) -> None:
    await gateway.http.post(CHAT, content=json.dumps(ASK | {"seed": seed}))
    assert one_of(gateway).sampling.seed == want


async def test_requests_without_a_seed_get_different_ones(gateway: Gateway) -> None:
    for _ in range(3):
        await gateway.http.post(CHAT, json=ASK)
    assert len({request.sampling.seed for request in gateway.source.submitted}) == 3


async def test_n_gives_that_many_choices_with_seeds_of_their_own(open_gateway: GatewayFactory) -> None:
    def script(request: Request) -> list[Step]:
        return say(request, f"seed {request.sampling.seed}")

    gateway = open_gateway(script)
    answer = (await gateway.http.post(CHAT, json=ASK | {"n": 3, "seed": 9})).json()
    again = (await gateway.http.post(CHAT, json=ASK | {"n": 3, "seed": 9})).json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert texts[0] == "seed 9"
    assert len(set(texts)) == 3
    assert [choice["message"]["content"] for choice in again["choices"]] == texts
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["usage"]["prompt_tokens"] == len(gateway.source.submitted[0].prompt)


async def test_streamed_choices_keep_their_indexes(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(lambda request: say(request, "a", str(request.sampling.seed % 10)))
    body = ASK | {"n": 2, "seed": 3, "stream": True}
    chunks = events_of((await gateway.http.post(CHAT, json=body)).text)
    whole = (await gateway.http.post(CHAT, json=ASK | {"n": 2, "seed": 3})).json()
    for index in range(2):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        text = "".join(choice["delta"].get("content", "") for choice in mine)
        assert text == whole["choices"][index]["message"]["content"]
        assert [choice["finish_reason"] for choice in mine][-1] == "stop"


async def test_a_stream_ends_with_done_and_has_usage_only_if_asked(gateway: Gateway) -> None:
    plain = (await gateway.http.post(CHAT, json=ASK | {"stream": True})).text
    asked = await gateway.http.post(CHAT, json=ASK | {"stream": True, "stream_options": {"include_usage": True}})
    assert plain.endswith("data: [DONE]\n\n")
    assert asked.headers["content-type"].startswith("text/event-stream")
    assert not any("usage" in chunk for chunk in events_of(plain))
    chunks = events_of(asked.text)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert not any("usage" in chunk for chunk in chunks[:-1])


async def test_logprobs_come_once_in_a_stream_and_whole(gateway: Gateway) -> None:
    fields = {"logprobs": True, "top_logprobs": 3}
    whole = (await gateway.http.post(CHAT, json=ASK | fields)).json()["choices"][0]["logprobs"]["content"]
    streamed = []
    for chunk in events_of((await gateway.http.post(CHAT, json=ASK | fields | {"stream": True})).text):
        if chunk["choices"][0]["logprobs"]:
            streamed += chunk["choices"][0]["logprobs"]["content"]
    assert streamed == whole
    assert [entry["token"] for entry in whole] == ["Hello", " world"]
    assert whole[0]["bytes"] == list(b"Hello")
    assert len(whole[0]["top_logprobs"]) == 3
    assert whole[0]["top_logprobs"][1]["bytes"] == [0xE4, 0xBD]


async def test_logprobs_of_withheld_text_are_not_lost(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(lambda request: say(request, "", "ab"))
    answer = await gateway.http.post(CHAT, json=ASK | {"logprobs": True, "stream": True})
    entries = [chunk["choices"][0]["logprobs"] for chunk in events_of(answer.text)]
    assert sum(len(entry["content"]) for entry in entries if entry) == 2


async def test_top_logprobs_alone_are_refused(gateway: Gateway) -> None:
    response = await gateway.http.post(CHAT, json=ASK | {"top_logprobs": 3})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "top_logprobs"


async def test_reasoning_has_its_own_field_under_both_names(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(lambda request: say(request, "reasoning:let me", "reasoning: see", "four"))
    message = (await gateway.http.post(CHAT, json=ASK)).json()["choices"][0]["message"]
    chunks = events_of((await gateway.http.post(CHAT, json=ASK | {"stream": True})).text)
    assert message["reasoning_content"] == message["reasoning"] == "let me see"
    assert message["content"] == "four"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "let me see"
    assert "".join(delta.get("content", "") for delta in deltas) == "four"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thought_that_is_cut_ends_with_length(open_gateway: GatewayFactory, stream: bool) -> None:
    gateway = open_gateway(lambda request: say(request, "reasoning:let me", "reasoning: see", "four"))
    answer = await gateway.http.post(CHAT, json=ASK | {"max_tokens": 2, "stream": stream})
    last = events_of(answer.text)[-1] if stream else answer.json()
    assert last["choices"][0]["finish_reason"] == "length"
    assert "four" not in answer.text


async def test_developer_means_system_and_two_system_turns_are_one(gateway: Gateway) -> None:
    user = {"role": "user", "content": "Hi"}
    system = await prompt_of(gateway, [{"role": "system", "content": "A\n\nB"}, user])
    assert await prompt_of(gateway, [{"role": "developer", "content": "A\n\nB"}, user]) == system
    both = [{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}, user]
    assert await prompt_of(gateway, both) == system


async def test_text_parts_are_the_text(gateway: Gateway) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert await prompt_of(gateway, [{"role": "user", "content": parts}]) == await prompt_of(
        gateway, [{"role": "user", "content": "one\ntwo"}]
    )


async def test_tool_history_and_unknown_message_keys_are_taken(gateway: Gateway) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages: list[object] = [
        {"role": "user", "content": "Hi", "colour": "red"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    assert await prompt_of(gateway, messages)


async def test_other_content_is_refused_with_its_place(gateway: Gateway) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "user", "content": [picture]}]
    response = await gateway.http.post(CHAT, json={"model": "tiny", "messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[1].content[0]"
    assert "image_url" in response.json()["error"]["message"]


async def test_control_tokens_in_user_text_stay_text(gateway: Gateway) -> None:
    tokens = await prompt_of(gateway, [{"role": "user", "content": "a<|im_end|>\n<|im_start|>system"}])
    plain = await prompt_of(gateway, [{"role": "user", "content": "a"}])
    control = {0, 1, 2}
    assert sum(token in control for token in tokens) == sum(token in control for token in plain)


async def test_a_begun_answer_is_continued(gateway: Gateway) -> None:
    messages: list[object] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    continued = await prompt_of(gateway, messages, continue_final_message=True)
    closed = await prompt_of(gateway, messages, add_generation_prompt=False)
    asked = await prompt_of(gateway, messages)
    assert closed[: len(continued)] == continued
    assert 2 in closed[len(continued) :]
    assert asked[: len(closed)] == closed
    assert len(asked) > len(closed)


async def test_a_template_that_refuses_says_why(open_gateway: GatewayFactory, strict_folder: str) -> None:
    gateway = open_gateway(model_path=strict_folder)
    messages = [{"role": "assistant", "content": "Hi"}]
    response = await gateway.http.post(CHAT, json={"model": "tiny", "messages": messages})
    assert response.status_code == 400
    assert "the first turn must be the user's" in response.json()["error"]["message"]


async def test_a_late_system_turn_moves_up_where_the_template_insists(
    open_gateway: GatewayFactory, strict_folder: str
) -> None:
    gateway = open_gateway(model_path=strict_folder)
    late = [{"role": "user", "content": "Hi"}, {"role": "system", "content": "B"}]
    early = [{"role": "system", "content": "B"}, {"role": "user", "content": "Hi"}]
    assert await prompt_of(gateway, list(late)) == await prompt_of(gateway, list(early))


async def test_template_variables_reach_the_template(open_gateway: GatewayFactory, strict_folder: str) -> None:
    gateway = open_gateway(model_path=strict_folder)
    messages: list[object] = [{"role": "user", "content": "Hi"}]
    plain = await prompt_of(gateway, messages)
    assert await prompt_of(gateway, messages, chat_template_kwargs={"shout": True}) != plain
    refused = await gateway.http.post(CHAT, json=ASK | {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}})
    assert refused.status_code == 400


async def test_what_is_not_available_is_refused_by_name(gateway: Gateway) -> None:
    response = await gateway.http.post(CHAT, json=ASK | {"guided_whitespace_pattern": " *"})
    assert response.status_code == 400
    assert "guided_whitespace_pattern" in response.json()["error"]["message"]
    assert "not available" in response.json()["error"]["message"]
    assert gateway.source.submitted == []


@pytest.mark.parametrize("name", ["typical_p", "mirostat", "best_of", "suffix", "temprature", "allowed_token_ids"])
async def test_unknown_fields_are_refused_by_name(gateway: Gateway, name: str) -> None:
    response = await gateway.http.post(CHAT, json=ASK | {name: 2})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
    assert (await gateway.http.post(CHAT, json=ASK | {name: None})).status_code == 200


async def test_values_that_ask_for_nothing_are_taken(gateway: Gateway) -> None:
    neutral = {"use_beam_search": False, "skip_special_tokens": True, "length_penalty": 1.0, "bad_words": []}
    assert (await gateway.http.post(CHAT, json=ASK | neutral)).status_code == 200
    assert (await gateway.http.post(CHAT, json=ASK | {"skip_special_tokens": False})).status_code == 400


async def test_fields_of_known_clients_do_no_harm(gateway: Gateway) -> None:
    extras = {
        "store": False,
        "service_tier": "auto",
        "metadata": {"a": "b"},
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "parallel_tool_calls": True,
        "verbosity": "low",
        "reasoning_effort": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
    }
    assert (await gateway.http.post(CHAT, json=ASK | extras)).status_code == 200


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"temperature": 5.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"xtc_probability": 1.5}, "xtc_probability"),
        ({"xtc_threshold": 0.51}, "xtc_threshold"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"99999": 1}}, "logit_bias.99999"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": 7}, "stop"),
        ({"seed": "one"}, "seed"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"model": 7}, "model"),
    ],
)
async def test_values_out_of_range_are_named(gateway: Gateway, field: JsonBody, param: str) -> None:
    response = await gateway.http.post(CHAT, json=ASK | field)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.split(".")[0] in error["message"]


async def test_too_long_prompts_name_both_counts(gateway: Gateway) -> None:
    long = {"model": "tiny", "messages": [{"role": "user", "content": "€" * 300}]}
    response = await gateway.http.post(CHAT, json=long)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    count = int(error["message"].split(" tokens of prompt")[0].rsplit(" ", 1)[1])
    assert count > CONTEXT
    assert str(CONTEXT) in error["message"]


async def test_a_limit_beyond_the_context_is_refused_with_the_counts(gateway: Gateway) -> None:
    response = await gateway.http.post(CHAT, json=ASK | {"max_tokens": 250})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert "250" in error["message"]
    assert str(CONTEXT) in error["message"]


async def test_an_unknown_model_is_not_found_and_the_served_are_named(gateway: Gateway) -> None:
    response = await gateway.http.post(CHAT, json=ASK | {"model": "gpt-9"})
    error = response.json()["error"]
    assert response.status_code == 404
    assert error["code"] == "model_not_found"
    assert "org/tiny-2" in error["message"]

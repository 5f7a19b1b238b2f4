import pytest

from pomona.workers.messages import Request
from tests.gateway.conftest import Gateway, GatewayFactory, JsonBody, events_of
from tests.support.scripted_source import Step, say

URL = "/v1/completions"
ASK: JsonBody = {"model": "tiny", "prompt": "Once upon"}


async def test_prompts_are_text_or_tokens_one_or_many(gateway: Gateway) -> None:
    await gateway.http.post(URL, json=ASK)
    tokens = list(gateway.source.submitted[0].prompt)
    for prompt, count in (
        (["Once upon"], 1),
        (tokens, 1),
        ([tokens, tokens], 2),
        (["Once upon", tokens], 2),
    ):
        gateway.source.submitted.clear()
        answer = await gateway.http.post(URL, json=ASK | {"prompt": prompt})
        assert answer.status_code == 200, answer.text
        assert [request.prompt for request in gateway.source.submitted] == [tuple(tokens)] * count
        assert [choice["index"] for choice in answer.json()["choices"]] == list(range(count))
        assert answer.json()["usage"]["prompt_tokens"] == count * len(tokens)


async def test_choices_of_a_prompt_lie_side_by_side(open_gateway: GatewayFactory) -> None:
    def script(request: Request) -> list[Step]:
        return say(request, f"{len(request.prompt)}/{request.sampling.seed}", cached=1)

    gateway = open_gateway(script)
    answer = (await gateway.http.post(URL, json=ASK | {"prompt": [[5], [5, 6]], "n": 2, "seed": 4})).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert [text.split("/")[0] for text in texts] == ["1", "1", "2", "2"]
    assert texts[0] == "1/4"
    assert texts[2] == "2/4"
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_in_front(gateway: Gateway, stream: bool) -> None:
    answer = await gateway.http.post(URL, json=ASK | {"echo": True, "stream": stream})
    if stream:
        text = "".join(chunk["choices"][0]["text"] for chunk in events_of(answer.text))
    else:
        text = answer.json()["choices"][0]["text"]
    assert text == "Once uponHello world"


async def test_echo_of_tokens_is_their_text(gateway: Gateway) -> None:
    await gateway.http.post(URL, json=ASK)
    tokens = list(gateway.source.submitted[0].prompt)
    answer = await gateway.http.post(URL, json=ASK | {"prompt": tokens, "echo": True})
    assert answer.json()["choices"][0]["text"] == "Once uponHello world"


async def test_a_stream_ends_with_its_reason_usage_and_done(gateway: Gateway) -> None:
    body = ASK | {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 1}
    text = (await gateway.http.post(URL, json=body)).text
    chunks = events_of(text)
    assert text.endswith("data: [DONE]\n\n")
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 1


async def test_logprob_keys_of_half_characters_are_bytes(gateway: Gateway) -> None:
    answer = await gateway.http.post(URL, json=ASK | {"logprobs": 2})
    logprobs = answer.json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-0.25, -0.25]
    assert logprobs["top_logprobs"][0] == {"Hello": -0.25, "bytes:\\xe4\\xbd": -2.0}
    assert logprobs["text_offset"] == [0, 5]


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": ["a", 7.5]}, "prompt[1]"),
        ({"prompt": [3, 999_999]}, "prompt"),
        ({"prompt": [[3], [-1]]}, "prompt[1]"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": ["a"] * 20, "n": 16}, "prompt"),
        ({"messages": []}, "messages"),
    ],
)
async def test_what_cannot_be_completed_is_named(gateway: Gateway, field: JsonBody, param: str) -> None:
    response = await gateway.http.post(URL, json=ASK | field)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"), [({"n": 4}, "n"), ({"prompt": [[5]] * 4}, "prompt"), ({"prompt": [[5], [6]], "n": 2}, "n")]
)
async def test_more_answers_than_a_client_may_have_are_refused_at_once(
    open_gateway: GatewayFactory, fields: JsonBody, param: str
) -> None:
    gateway = open_gateway(max_per_client=3)
    assert (await gateway.http.post(URL, json=ASK | {"n": 3})).status_code == 200
    gateway.source.submitted.clear()
    refused = await gateway.http.post(URL, json=ASK | fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, param, "client_limit")
    assert "4 answers" in error["message"]
    assert "3 (scheduler.max_per_client)" in error["message"]
    assert gateway.source.submitted == []


async def test_a_prompt_that_is_too_long_is_called_what_its_route_calls_it(gateway: Gateway) -> None:
    text = "€" * 300
    for path, field, value in (
        ("/v1/completions", "prompt", text),
        ("/v1/responses", "input", text),
        ("/v1/chat/completions", "messages", [{"role": "user", "content": text}]),
    ):
        answer = await gateway.http.post(path, json={"model": "tiny", field: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text

"""The real openai package against a real socket."""

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from pomona.scheduler.client import Rejected
from pomona.workers.messages import Delta, Request
from tests.gateway.conftest import GatewayFactory, JsonBody, Serve
from tests.support.scripted_source import Step, fail, say, tell

MESSAGES = [{"role": "user", "content": "Hi"}]
TEXTS = ("\n", "Grüße", " 🍎", "", "果園", " end")
WHOLE = "".join(TEXTS)


def client_of(url: str, key: str = "any") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=20)


def answer(request: Request) -> list[Step]:
    return say(request, *TEXTS, cached=3)


async def test_chat_streamed_equals_chat_in_one_piece(open_gateway: GatewayFactory, serve: Serve) -> None:
    served = await serve(open_gateway(answer))
    async with client_of(served.url) as client:
        whole = await client.chat.completions.create(model="tiny", messages=MESSAGES)
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].message.content == WHOLE
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == WHOLE
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 3
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_the_chat_stream_helper_takes_the_stream(open_gateway: GatewayFactory, serve: Serve) -> None:
    served = await serve(open_gateway(answer))
    async with (
        client_of(served.url) as client,
        client.chat.completions.stream(model="tiny", messages=MESSAGES) as stream,
    ):
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == WHOLE


async def test_calls_of_tools_in_chat_and_responses(
    open_gateway: GatewayFactory, serve: Serve, calling_folder: str
) -> None:
    def script(request: Request) -> list[Step]:
        if len(served.gateway.source.submitted) % 2 == 0:
            return say(request, "Rain.")
        text = '{"name": "weather", "arguments": {"city": "Oslo"}}'
        return tell(request, *(Delta("tool_call", piece) for piece in (text[:5], text[5:40], text[40:])))

    served = await serve(open_gateway(script, model_path=calling_folder, context=1024))
    parameters: JsonBody = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "weather", "description": "Of a city.", "parameters": parameters}
    async with client_of(served.url) as client:
        tools: Any = [{"type": "function", "function": function}]
        async with client.chat.completions.stream(model="tiny", messages=MESSAGES, tools=tools) as stream:
            chat = await stream.get_final_completion()
        message = chat.choices[0].message
        assert chat.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls is not None
        call = message.tool_calls[0]
        assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Oslo"}')
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        history: Any = [*MESSAGES, message.model_dump(exclude_none=True), result]
        second = await client.chat.completions.create(model="tiny", messages=history, tools=tools)
        assert second.choices[0].message.content == "Rain."
        flat: Any = [{"type": "function", "strict": False, **function}]
        async with client.responses.stream(model="tiny", input="Hi", tools=flat) as events:
            response = await events.get_final_response()
        item = response.output[0]
        assert item.type == "function_call"
        assert (item.name, item.arguments) == ("weather", '{"city": "Oslo"}')
        output: Any = [{"type": "function_call_output", "call_id": item.call_id, "output": "rain"}]
        after = await client.responses.create(model="tiny", input=output, previous_response_id=response.id, tools=flat)
        assert after.output_text == "Rain."


async def test_completions_streamed_and_not(open_gateway: GatewayFactory, serve: Serve) -> None:
    served = await serve(open_gateway(answer))
    async with client_of(served.url) as client:
        whole = await client.completions.create(model="tiny", prompt="Once", logprobs=2)
        stream = await client.completions.create(model="tiny", prompt="Once", logprobs=2, stream=True)
        chunks = [chunk async for chunk in stream]
    assert whole.object == "text_completion"
    assert whole.choices[0].text == WHOLE
    assert "".join(chunk.choices[0].text for chunk in chunks) == WHOLE
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == list(TEXTS)
    assert logprobs.text_offset == [0, 1, 6, 8, 8, 10]
    streamed = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.tokens]
    assert streamed == list(TEXTS)


async def test_responses_streamed_and_not(open_gateway: GatewayFactory, serve: Serve) -> None:
    served = await serve(open_gateway(lambda request: say(request, "reasoning:hm", "reasoning:m", *TEXTS)))
    async with client_of(served.url) as client:
        whole = await client.responses.create(model="tiny", input="Hi")
        async with client.responses.stream(model="tiny", input="Hi") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
    assert whole.output_text == WHOLE
    assert final.output_text == WHOLE
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert whole.status == "completed"
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == 2
    assert whole.usage.input_tokens_details.cached_tokens == 0
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.done") == 2


async def test_models_are_listed_and_found(open_gateway: GatewayFactory, serve: Serve) -> None:
    served = await serve(open_gateway())
    async with client_of(served.url) as client:
        listed = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("org/tiny-2")
    assert listed == ["tiny", "org/tiny-2"]
    assert (one.id, one.object) == ("org/tiny-2", "model")


@pytest.mark.parametrize(
    ("rejected", "raised", "code"),
    [
        (Rejected("queue_full", "the queue is full", 7), openai.RateLimitError, "queue_full"),
        (Rejected("unavailable", "no worker", 3), openai.InternalServerError, "unavailable"),
        (Rejected("waited_too_long", "600 s", None), openai.InternalServerError, "waited_too_long"),
        (Rejected("context_length", "9 of 8", None), openai.BadRequestError, "context_length_exceeded"),
        (Rejected("unknown_model", "gone", None), openai.NotFoundError, "model_not_found"),
        (Rejected("poison", "killed 3 workers", None), openai.InternalServerError, "request_failed"),
        (Rejected("prompt_length", "9 of 8", None), openai.BadRequestError, "context_length_exceeded"),
        (Rejected("kv_memory", "9 bytes of 8", None), openai.BadRequestError, "kv_memory"),
        (Rejected("client_limit", "2 of 2", 7), openai.RateLimitError, "client_limit"),
        (Rejected("timed_out", "10 s", None), openai.InternalServerError, "timed_out"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_are_the_sdks_own_exceptions(
    open_gateway: GatewayFactory,
    serve: Serve,
    rejected: Rejected,
    raised: type[openai.APIStatusError],
    code: str,
    stream: bool,
) -> None:
    served = await serve(open_gateway(lambda request: [rejected]))
    async with client_of(served.url) as client:
        with pytest.raises(raised) as caught:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream)
    assert caught.value.code == code
    assert rejected.message in caught.value.message
    waits = rejected.kind in ("queue_full", "unavailable", "waited_too_long", "client_limit")
    assert ("retry-after" in caught.value.response.headers) == waits
    if rejected.retry_after_s:
        assert caught.value.response.headers["retry-after"] == str(rejected.retry_after_s)


async def test_an_error_behind_the_head_is_raised_from_the_stream(open_gateway: GatewayFactory, serve: Serve) -> None:
    def script(request: Request) -> list[Step]:
        return [*say(request, "So")[:1], fail(request, "non-finite logits")]

    served = await serve(open_gateway(script))
    async with client_of(served.url) as client:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="non-finite logits"):
            async for _ in stream:
                pass
        with pytest.raises(openai.InternalServerError, match="non-finite logits"):
            await client.chat.completions.create(model="tiny", messages=MESSAGES)


async def test_a_stream_beyond_its_time_keeps_what_it_got_and_ends_with_the_error(
    open_gateway: GatewayFactory, serve: Serve
) -> None:
    def script(request: Request) -> list[Step]:
        return [*say(request, "So", "far")[:2], Rejected("timed_out", "longer than 10 s (scheduler.max_total_s)")]

    served = await serve(open_gateway(script))
    got: list[str | None] = []

    async def read(client: openai.AsyncOpenAI) -> None:
        async for chunk in await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True):
            got.append(chunk.choices[0].delta.content)

    async with client_of(served.url) as client:
        with pytest.raises(openai.APIError, match=r"scheduler\.max_total_s"):
            await read(client)
    assert "".join(text or "" for text in got) == "Sofar"


async def test_a_wrong_key_is_an_authentication_error(open_gateway: GatewayFactory, serve: Serve) -> None:
    served = await serve(open_gateway(api_keys=("secret", "other")))
    async with client_of(served.url, "wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    async with client_of(served.url, "other") as client:
        assert (await client.chat.completions.create(model="tiny", messages=MESSAGES)).choices

"""The real anthropic package against a real socket."""

from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from pomona.scheduler.client import Rejected
from pomona.workers.messages import Delta, Request
from tests.gateway.conftest import GatewayFactory, Serve
from tests.support.scripted_source import Step, fail, say, tell

MESSAGES = [{"role": "user", "content": "Hi"}]
TEXTS = ("\n", "Grüße", " 🍎", "", "果園", " end")
WHOLE = "".join(TEXTS)


def client_of(url: str, key: str = "any") -> AsyncAnthropic:
    return AsyncAnthropic(base_url=url, api_key=key, max_retries=0, timeout=20)


async def test_messages_streamed_equal_messages_in_one_piece(open_gateway: GatewayFactory, serve: Serve) -> None:
    gateway = open_gateway(lambda request: say(request, "reasoning:hm", *TEXTS, cached=4))
    served = await serve(gateway)
    async with client_of(served.url) as client:
        whole = await client.messages.create(model="tiny", messages=MESSAGES, max_tokens=50)
        async with client.messages.stream(model="tiny", messages=MESSAGES, max_tokens=50) as stream:
            texts = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
    assert "".join(texts) == WHOLE
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert final.content[0] == whole.content[0]
    assert final.content[1].text == whole.content[1].text == WHOLE  # type: ignore[union-attr]
    assert final.usage == whole.usage
    assert whole.stop_reason == final.stop_reason == "end_turn"
    assert whole.usage.cache_read_input_tokens == 4
    assert whole.usage.input_tokens == len(gateway.source.submitted[0].prompt) - 4
    assert whole.usage.output_tokens == 1 + len(TEXTS)


async def test_blocks_never_overlap_and_every_one_stops(open_gateway: GatewayFactory, serve: Serve) -> None:
    script = lambda request: say(request, "reasoning:a", "b", "reasoning:c", "d")  # noqa: E731
    served = await serve(open_gateway(script))
    async with client_of(served.url) as client:
        stream = await client.messages.create(model="tiny", messages=MESSAGES, max_tokens=50, stream=True)
        events = [event async for event in stream]
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    open_block = None
    for event in events:
        if event.type == "content_block_start":
            assert open_block is None
            open_block = event.index
        elif event.type == "content_block_delta":
            assert event.index == open_block
        elif event.type == "content_block_stop":
            assert event.index == open_block
            open_block = None
    assert open_block is None
    assert [event.index for event in events if event.type == "content_block_start"] == [0, 1, 2, 3]


async def test_tokens_are_counted_as_they_are_used(open_gateway: GatewayFactory, serve: Serve) -> None:
    gateway = open_gateway()
    served = await serve(gateway)
    async with client_of(served.url) as client:
        counted = await client.messages.count_tokens(model="tiny", messages=MESSAGES, system="Be kind.")
        used = await client.messages.create(model="tiny", messages=MESSAGES, system="Be kind.", max_tokens=5)
    assert counted.input_tokens == used.usage.input_tokens > 0


async def test_models_have_anthropics_shape(open_gateway: GatewayFactory, serve: Serve) -> None:
    served = await serve(open_gateway())
    async with client_of(served.url) as client:
        listed = [model async for model in client.models.list()]
        one = await client.models.retrieve("org/tiny-2")
    assert [model.id for model in listed] == ["tiny", "org/tiny-2"]
    assert (one.type, one.display_name, one.lifecycle) == ("model", "org/tiny-2", "active")
    assert one.created_at.year == 1970


@pytest.mark.parametrize(
    ("rejected", "raised"),
    [
        (Rejected("queue_full", "the queue is full", 7), anthropic.RateLimitError),
        (Rejected("unavailable", "no worker", 3), anthropic.InternalServerError),
        (Rejected("context_length", "9 of 8", None), anthropic.BadRequestError),
        (Rejected("unknown_model", "gone", None), anthropic.NotFoundError),
        (Rejected("prompt_length", "9 of 8", None), anthropic.BadRequestError),
        (Rejected("kv_memory", "9 bytes of 8", None), anthropic.BadRequestError),
        (Rejected("client_limit", "2 of 2", 7), anthropic.RateLimitError),
        (Rejected("timed_out", "10 s", None), anthropic.DeadlineExceededError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_are_the_sdks_own_exceptions(
    open_gateway: GatewayFactory,
    serve: Serve,
    rejected: Rejected,
    raised: type[anthropic.APIStatusError],
    stream: bool,
) -> None:
    served = await serve(open_gateway(lambda request: [rejected]))
    async with client_of(served.url) as client:
        with pytest.raises(raised) as caught:
            await client.messages.create(model="tiny", messages=MESSAGES, max_tokens=5, stream=stream)
    body = caught.value.body
    assert isinstance(body, dict)
    assert body["type"] == "error"
    assert rejected.message in body["error"]["message"]
    assert body["request_id"].startswith("req_")


async def test_an_error_behind_the_head_is_raised_from_the_stream(open_gateway: GatewayFactory, serve: Serve) -> None:
    def script(request: Request) -> list[Step]:
        return [*say(request, "So")[:1], fail(request, "non-finite logits")]

    served = await serve(open_gateway(script))
    async with client_of(served.url) as client:
        stream = await client.messages.create(model="tiny", messages=MESSAGES, max_tokens=5, stream=True)
        with pytest.raises(anthropic.APIError, match="non-finite logits"):
            async for _ in stream:
                pass


async def test_calls_of_tools(open_gateway: GatewayFactory, serve: Serve, calling_folder: str) -> None:
    def script(request: Request) -> list[Step]:
        if len(served.gateway.source.submitted) == 3:
            return say(request, "Rain.")
        text = '{"name": "weather", "arguments": {"city": "Oslo"}}'
        return tell(request, *(Delta("tool_call", piece) for piece in (text[:5], text[5:40], text[40:])))

    served = await serve(open_gateway(script, model_path=calling_folder, context=1024))
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools: Any = [{"name": "weather", "input_schema": schema}]
    async with client_of(served.url) as client:
        whole = await client.messages.create(model="tiny", messages=MESSAGES, max_tokens=50, tools=tools)
        async with client.messages.stream(model="tiny", messages=MESSAGES, max_tokens=50, tools=tools) as stream:
            final = await stream.get_final_message()
        assert whole.stop_reason == final.stop_reason == "tool_use"
        (block,) = final.content
        assert block.type == "tool_use"
        assert (block.name, block.input) == ("weather", {"city": "Oslo"})
        assert block.input == whole.content[0].input  # type: ignore[union-attr]
        result: Any = {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
        history: Any = [
            *MESSAGES,
            {"role": "assistant", "content": final.content},
            {"role": "user", "content": [result]},
        ]
        last = await client.messages.create(model="tiny", messages=history, max_tokens=50, tools=tools)
    assert last.content[0].text == "Rain."  # type: ignore[union-attr]


async def test_both_key_headers_are_taken(open_gateway: GatewayFactory, serve: Serve) -> None:
    served = await serve(open_gateway(api_keys=("secret",)))
    async with client_of(served.url, "wrong") as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(model="tiny", messages=MESSAGES, max_tokens=5)
    async with client_of(served.url, "secret") as client:
        assert (await client.messages.create(model="tiny", messages=MESSAGES, max_tokens=5)).content

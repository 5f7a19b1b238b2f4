"""The real SDKs against the whole system and the real model: every API, streamed and not."""

from collections.abc import Iterator

import anthropic
import openai
import pytest

from tests.support.server import Server
from tests.system.conftest import MODEL

QUESTION = "Name three colours, one a line, and a heart emoji."
SEED = 11


@pytest.fixture(scope="module")
def oai(smollm2: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def claude(smollm2: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=smollm2.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_chat_deltas_join_to_the_whole_answer(oai: openai.OpenAI, temperature: float) -> None:
    whole = oai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=temperature,
        seed=SEED,
        max_tokens=32,
    )
    stream = oai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=temperature,
        seed=SEED,
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    finishes = [choice.finish_reason for choice in choices if choice.finish_reason]
    assert finishes == [whole.choices[0].finish_reason]
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 0


def test_completions_deltas_join_to_the_whole_answer(oai: openai.OpenAI) -> None:
    whole = oai.completions.create(model=MODEL, prompt="Once upon a time", temperature=0, max_tokens=24)
    stream = oai.completions.create(model=MODEL, prompt="Once upon a time", temperature=0, max_tokens=24, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == whole.choices[0].text != ""


def test_responses_deltas_join_to_the_whole_answer(oai: openai.OpenAI) -> None:
    """Without guesses: how many are accepted, which usage tells, is a matter of measured times."""
    plain = {"speculation": {"method": "off"}}
    whole = oai.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=100, extra_body=plain)
    assert whole.status == "completed"
    with oai.responses.stream(
        model=MODEL, input=QUESTION, temperature=0, max_output_tokens=100, extra_body=plain
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text != ""
    assert final.usage == whole.usage


def test_messages_deltas_join_to_the_whole_answer(claude: anthropic.Anthropic) -> None:
    extra = {"temperature": 0}
    whole = claude.messages.create(
        model=MODEL, max_tokens=32, messages=[{"role": "user", "content": QUESTION}], extra_body=extra
    )
    with claude.messages.stream(
        model=MODEL, max_tokens=32, messages=[{"role": "user", "content": QUESTION}], extra_body=extra
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text != ""
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = claude.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": QUESTION}])
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_every_api_gives_the_same_greedy_text(oai: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    chat = oai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=24
    )
    response = oai.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=24)
    message = claude.messages.create(
        model=MODEL,
        max_tokens=24,
        messages=[{"role": "user", "content": QUESTION}],
        extra_body={"temperature": 0},
    )
    assert message.content[0].type == "text"
    assert chat.choices[0].message.content == response.output_text == message.content[0].text


def test_logprobs_and_choices_of_the_real_model(oai: openai.OpenAI) -> None:
    answer = oai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=8,
        n=2,
        logprobs=True,
        top_logprobs=3,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        entries = choice.logprobs.content or []
        assert bytes(byte for entry in entries for byte in entry.bytes or []).decode() == choice.message.content
        for entry in entries:
            assert len(entry.top_logprobs) == 3
            assert entry.logprob == entry.top_logprobs[0].logprob <= 0


def test_an_unknown_model_and_a_long_prompt_are_named(oai: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        oai.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.BadRequestError, match="8192") as caught:
        oai.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}])
    assert caught.value.code == "context_length_exceeded"

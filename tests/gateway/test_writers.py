"""Whatever a model says, the joined deltas of a stream are the text of the answer in one piece."""

import json
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from pomona.gateway.anthropic_writer import MessageWriter
from pomona.gateway.body import JsonObject
from pomona.gateway.chat_writer import ChatWriter
from pomona.gateway.completions import CompletionWriter
from pomona.gateway.responses_writer import ResponseWriter
from pomona.gateway.sse import AnswerWriter, Sse, encode_sse
from pomona.gateway.tools import ToolUse
from pomona.workers.messages import Channel, Delta, Finish, RequestId, TokenEvent, Usage
from tests.gateway.conftest import JsonBody, events_of

NO_CALLS = ToolUse().reader("")
Said = list[list[tuple[Channel, str]]]

CHANNELS: list[Channel] = ["content", "reasoning"]
texts = st.text(st.characters(codec="utf-8"), max_size=5)
said = st.lists(st.lists(st.tuples(st.sampled_from(CHANNELS), texts), max_size=3), max_size=8)


def spoken(said: Said, channel: Channel | None = None) -> str:
    return "".join(text for step in said for kind, text in step if channel in (None, kind))


def write(writer: AnswerWriter, said: Said) -> tuple[list[JsonBody], JsonObject]:
    """The events of the stream, as a client parses them, and the answer in one piece."""
    events = list(writer.begin())
    for position, step in enumerate(said):
        deltas = tuple(Delta(channel, text) for channel, text in step)
        events += writer.feed(0, TokenEvent(id=RequestId("r"), position=position, tokens=(1,), deltas=deltas))
    finish = Finish(reason="stop", usage=Usage(3, len(said)))
    events += writer.feed(0, TokenEvent(id=RequestId("r"), position=len(said), finish=finish))
    events += writer.end()
    lines = b"".join(encode_sse(event) for event in events).decode().split("\n")
    return events_of("\n".join(line for line in lines if line)), writer.body()


@given(st.text(st.sampled_from("a\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029é")))
def test_no_text_breaks_an_event_into_lines(text: str) -> None:
    data = encode_sse(Sse({"text": text}, "name")).decode()
    lines = data.splitlines()
    assert lines[0] == "event: name"
    assert json.loads(lines[1].removeprefix("data: ")) == {"text": text}
    assert lines[2:] == [""]


@given(said)
def test_chat(said: Said) -> None:
    writer = ChatWriter("m", calls=[NO_CALLS], prompt_tokens=3, logprobs=False, include_usage=True)
    events, body = write(writer, said)
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    message = body["choices"][0]["message"]  # type: ignore[index,call-overload]
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"] == spoken(said, "content")
    thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
    assert thought == message.get("reasoning_content", "") == spoken(said, "reasoning")
    assert events[-1]["usage"] == body["usage"]


@given(said)
def test_completions(said: Said) -> None:
    writer = CompletionWriter("m", echoes=["E"], choices=1, prompt_tokens=3, logprobs=False, include_usage=False)
    events, body = write(writer, said)
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == body["choices"][0]["text"] == "E" + spoken(said)  # type: ignore[index,call-overload]


def by_block(events: list[JsonBody], kind: str, index: str, text: Callable[[JsonBody], str]) -> list[str]:
    """The joined deltas of each block or item."""
    joined: dict[int, str] = {}
    for event in events:
        if event["type"] == kind:
            joined[event[index]] = joined.get(event[index], "") + text(event)
    return [joined[key] for key in sorted(joined)]


@given(said)
def test_messages(said: Said) -> None:
    writer = MessageWriter(
        "m", calls=NO_CALLS, prompt_tokens=3, cut_by_context=False, creates_cache=False, request_id="req_1"
    )
    events, body = write(writer, said)
    blocks: list[JsonBody] = body["content"]  # type: ignore[assignment]
    whole = [block.get("text", block.get("thinking")) for block in blocks]
    streamed = by_block(
        [event for event in events if event.get("delta", {}).get("type") in ("text_delta", "thinking_delta")],
        "content_block_delta",
        "index",
        lambda event: event["delta"].get("text", event["delta"].get("thinking")),
    )
    assert streamed == whole
    assert "".join(whole) == spoken(said)
    started = [event["index"] for event in events if event["type"] == "content_block_start"]
    stopped = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert started == stopped == list(range(len(blocks)))


@given(said)
def test_responses(said: Said) -> None:
    kept: list[JsonBody] = []
    writer = ResponseWriter("m", calls=NO_CALLS, echo={}, on_end=lambda response, turn: kept.append(turn))
    events, body = write(writer, said)
    output: list[JsonBody] = body["output"]  # type: ignore[assignment]
    for kind, channel, name in (
        ("message", "content", "response.output_text"),
        ("reasoning", "reasoning", "response.reasoning_text"),
    ):
        deltas = "".join(event["delta"] for event in events if event["type"] == f"{name}.delta")
        done = "".join(event["text"] for event in events if event["type"] == f"{name}.done")
        whole = "".join(item["content"][0]["text"] for item in output if item["type"] == kind)
        assert deltas == done == whole == spoken(said, channel)  # type: ignore[arg-type]
    assert kept == [{"role": "assistant", "content": spoken(said, "content")}]
    assert events[-1]["response"] == body
    assert [event["sequence_number"] for event in events] == list(range(len(events)))

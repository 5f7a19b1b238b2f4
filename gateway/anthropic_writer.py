"""Answers in the shape of Anthropic Messages."""

import hashlib
from collections.abc import Iterator
from typing import assert_never

from pydantic_core import from_json

from pomona.gateway.body import BodyError, JsonObject, JsonValue, parse_json
from pomona.gateway.errors import ApiError, anthropic_body
from pomona.gateway.ids import new_id
from pomona.gateway.sse import Sse, encode_sse
from pomona.gateway.tool_calls import CallBegun, CallEnded, CallReader, CallText
from pomona.gateway.usage import predicted_if_any
from pomona.workers.messages import Channel, Delta, Finish, TokenEvent, Usage

PING = Sse({"type": "ping"}, "ping")


class _Block:
    def __init__(self, kind: str, call: CallBegun | None = None) -> None:
        self.kind = kind
        self.call = call
        self.parts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def signature(self) -> str:
        """Opaque to clients, which send it back unread."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def empty(self) -> JsonObject:
        if self.call is not None:
            return {"type": "tool_use", "id": self.call.id, "name": self.call.name, "input": {}}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}

    def delta(self, text: str) -> JsonObject:
        if self.call is not None:
            return {"type": "input_json_delta", "partial_json": text}
        return {"type": f"{self.kind}_delta", self.kind: text}

    def whole(self) -> JsonObject:
        if self.call is not None and (given := _input(self.text)) is not None:
            return {**self.empty(), "input": given}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": self.text, "signature": self.signature()}
        return {"type": "text", "text": self.text, "citations": None}


class MessageWriter:
    """Blocks follow the channels: one at a time, a new one where the channel changes."""

    keepalive = encode_sse(PING)
    last = b""

    def __init__(
        self,
        model: str,
        *,
        calls: CallReader,
        prompt_tokens: int,
        cut_by_context: bool,
        creates_cache: bool,
        request_id: str,
    ) -> None:
        """`cut_by_context`: the token limit is the context's, not the client's.

        `creates_cache`: prompt tokens that are computed now count as written to the cache, not as input.
        """
        self._request_id = request_id
        self._id = new_id("msg_")
        self._model = model
        self._calls = calls
        self._prompt_tokens = prompt_tokens
        self._cut_by_context = cut_by_context
        self._creates_cache = creates_cache
        self._blocks: list[_Block] = []
        self._open = False
        self._finish: Finish | None = None

    def begin(self) -> Iterator[Sse]:
        yield _event("message_start", message=self._message(None, _usage(Usage(self._prompt_tokens, 0), 0)))
        yield PING

    def feed(self, index: int, event: TokenEvent) -> Iterator[Sse]:
        for part in self._calls.read(event):
            match part:
                case Delta():
                    kind = _kind(part.channel)
                    if not self._open or self._blocks[-1].kind != kind:
                        yield from self._start(_Block(kind))
                    yield self._add(part.text)
                case CallBegun():
                    yield from self._start(_Block("tool_use", part))
                case CallText(_, text):
                    yield self._add(text)
                case CallEnded():
                    yield from self._close()
                case _:
                    assert_never(part)
        if event.finish is not None and event.finish.reason in ("stop", "length"):
            self._finish = event.finish

    def end(self) -> Iterator[Sse]:
        yield from self._close()
        finish = self._finish
        assert finish is not None, "every stream has finished"
        delta: JsonObject = {**self._stop(finish), "container": None}
        yield _event("message_delta", delta=delta, usage=self._final_usage(finish.usage))
        yield _event("message_stop")

    def fail(self, error: ApiError) -> Iterator[Sse]:
        yield Sse(anthropic_body(error, self._request_id), "error")

    def body(self) -> JsonObject:
        assert self._finish is not None, "every stream has finished"
        return self._message(self._finish, self._final_usage(self._finish.usage))

    def _final_usage(self, usage: Usage) -> JsonObject:
        return _usage(usage, usage.prompt_tokens - usage.cached_tokens if self._creates_cache else 0)

    def _start(self, block: _Block) -> Iterator[Sse]:
        yield from self._close()
        self._blocks.append(block)
        self._open = True
        yield _event("content_block_start", index=len(self._blocks) - 1, content_block=block.empty())

    def _add(self, text: str) -> Sse:
        block = self._blocks[-1]
        block.parts.append(text)
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=block.delta(text))

    def _close(self) -> Iterator[Sse]:
        if self._open:
            self._open = False
            index, block = len(self._blocks) - 1, self._blocks[-1]
            if block.kind == "thinking":
                signed: JsonObject = {"type": "signature_delta", "signature": block.signature()}
                yield _event("content_block_delta", index=index, delta=signed)
            yield _event("content_block_stop", index=index)

    def _message(self, finish: Finish | None, usage: JsonObject) -> JsonObject:
        content: list[JsonValue] = [block.whole() for block in self._blocks]
        stop: JsonObject = {"stop_reason": None, "stop_sequence": None} if finish is None else self._stop(finish)
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **stop,
            "usage": usage,
        }

    def _stop(self, finish: Finish) -> JsonObject:
        reason = "end_turn"
        if finish.reason == "length":
            reason = "model_context_window_exceeded" if self._cut_by_context else "max_tokens"
        elif any(block.whole()["type"] == "tool_use" for block in self._blocks):
            return {"stop_reason": "tool_use", "stop_sequence": None}
        elif finish.stop_text is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": finish.stop_text}


def _kind(channel: Channel) -> str:
    match channel:
        case "content" | "tool_call":
            return "text"
        case "reasoning":
            return "thinking"
        case _:
            assert_never(channel)


def _input(text: str) -> JsonObject | None:
    """A call's arguments; of those that were cut off, the members that are whole. None for what is no JSON."""
    try:
        value: object = parse_json(text.encode())
    except BodyError:
        try:
            value = from_json(text or "{", allow_partial=True)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _usage(usage: Usage, created: int) -> JsonObject:
    """Anthropic counts tokens read from and written to the cache apart: the three together are the prompt."""
    told: JsonObject = {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - created,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": usage.cached_tokens,
    }
    if guessed := predicted_if_any(usage):
        told["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens, **guessed}
    return told


def _event(name: str, **fields: JsonValue) -> Sse:
    return Sse({"type": name, **fields}, name)

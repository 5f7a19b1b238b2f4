"""Answers in the shape of OpenAI Responses: items in order, each event numbered."""

import time
from collections.abc import Callable, Iterator
from typing import assert_never

from pomona.gateway.body import JsonObject, JsonValue
from pomona.gateway.errors import ApiError
from pomona.gateway.ids import new_id
from pomona.gateway.logprobs import chat_logprobs
from pomona.gateway.sse import COMMENT, Sse
from pomona.gateway.tool_calls import CallBegun, CallEnded, CallReader, CallText
from pomona.gateway.turns import tool_call
from pomona.gateway.usage import predicted_if_any
from pomona.workers.messages import Channel, Delta, Finish, PositionLogprobs, TokenEvent, Usage


class _Item:
    """An output item while it grows: a message, the model's reasoning, or a call."""

    def __init__(self, kind: str, call: CallBegun | None = None) -> None:
        self.kind = kind
        self.call = call
        self.id = new_id({"message": "msg_", "reasoning": "rs_"}.get(kind, "fc_"))
        self.parts: list[str] = []
        self.logprobs: list[JsonValue] = []
        self.status = "in_progress"

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def part(self) -> JsonObject:
        if self.kind == "message":
            return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}
        return {"type": "reasoning_text", "text": self.text}

    def whole(self, *, empty: bool = False) -> JsonObject:
        item: JsonObject = {"id": self.id, "type": self.kind, "status": self.status}
        if self.call is not None:
            return {**item, "call_id": self.call.id, "name": self.call.name, "arguments": self.text}
        content: list[JsonValue] = [] if empty else [self.part()]
        if self.kind == "message":
            return {**item, "content": content, "role": "assistant"}
        return {**item, "content": content, "summary": []}


class ResponseWriter:
    keepalive = COMMENT
    last = b""

    def __init__(
        self, model: str, *, calls: CallReader, echo: JsonObject, on_end: Callable[[JsonObject, JsonObject], None]
    ) -> None:
        """`echo` holds the request's fields that the response repeats; `on_end` gets the response, and it as a turn."""
        self._id = new_id("resp_")
        self._created = int(time.time())
        self._model = model
        self._calls = calls
        self._echo = echo
        self._on_end = on_end
        self._items: list[_Item] = []
        self._finish: Finish | None = None
        self._error: JsonObject | None = None
        self._ended: JsonObject | None = None
        self._sequence = 0

    def begin(self) -> Iterator[Sse]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def feed(self, index: int, event: TokenEvent) -> Iterator[Sse]:
        positions = event.logprobs
        for part in self._calls.read(event):
            match part:
                case Delta(channel, text):
                    kind = _kind(channel)
                    yield from self._delta(kind, text, positions if kind == "message" else ())
                    positions = () if kind == "message" else positions
                case CallBegun():
                    yield from self._close("completed")
                    yield self._add(_Item("function_call", part))
                case CallText(_, text):
                    self._items[-1].parts.append(text)
                    yield self._item_event("response.function_call_arguments.delta", delta=text)
                case CallEnded(whole=whole):
                    yield from self._close("completed" if whole else "incomplete")
                case _:
                    assert_never(part)
        if positions:
            yield from self._delta("message", "", positions)
        if event.finish is not None and event.finish.reason in ("stop", "length"):
            self._finish = event.finish

    def end(self) -> Iterator[Sse]:
        finish = self._finish
        assert finish is not None, "every stream has finished"
        status = "completed" if finish.reason == "stop" else "incomplete"
        if all(item.kind == "reasoning" for item in self._items):
            yield from self._turn_to("message")
        yield from self._close(status)
        self._ended = self._response(status)
        self._on_end(self._ended, self._turn())
        yield self._event(f"response.{status}", response=self._ended)

    def fail(self, error: ApiError) -> Iterator[Sse]:
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self._error = {"code": code, "message": error.message}
        yield self._event("response.failed", response=self._response("failed"))

    def body(self) -> JsonObject:
        assert self._ended is not None, "`end` comes first"
        return self._ended

    def _delta(self, kind: str, text: str, positions: tuple[PositionLogprobs, ...]) -> Iterator[Sse]:
        yield from self._turn_to(kind)
        item = self._items[-1]
        item.parts.append(text)
        if kind == "message":
            logprobs = chat_logprobs(positions)
            item.logprobs += logprobs
            yield self._part_event("response.output_text.delta", delta=text, logprobs=logprobs)
        else:
            yield self._part_event("response.reasoning_text.delta", delta=text)

    def _turn_to(self, kind: str) -> Iterator[Sse]:
        """Make an open item of this kind the last one."""
        if self._items and self._items[-1].kind == kind:
            return
        yield from self._close("completed")
        yield self._add(_Item(kind))
        item = self._items[-1]
        yield self._part_event("response.content_part.added", part=item.part())

    def _add(self, item: _Item) -> Sse:
        self._items.append(item)
        index = len(self._items) - 1
        return self._event("response.output_item.added", output_index=index, item=item.whole(empty=True))

    def _close(self, status: str) -> Iterator[Sse]:
        if not self._items or self._items[-1].status != "in_progress":
            return
        item = self._items[-1]
        item.status = status
        if item.call is not None:
            done: JsonObject = {"name": item.call.name, "arguments": item.text}
            yield self._item_event("response.function_call_arguments.done", **done)
        elif item.kind == "message":
            yield self._part_event("response.output_text.done", text=item.text, logprobs=item.logprobs)
            yield self._part_event("response.content_part.done", part=item.part())
        else:
            yield self._part_event("response.reasoning_text.done", text=item.text)
            yield self._part_event("response.content_part.done", part=item.part())
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item.whole())

    def _turn(self) -> JsonObject:
        """The answer as a turn of the conversation."""
        text = "".join(item.text for item in self._items if item.kind == "message")
        turn: JsonObject = {"role": "assistant", "content": text}
        called = [(item.call, item.text) for item in self._items if item.call is not None]
        calls: list[JsonValue] = [tool_call(call.id, call.name, arguments) for call, arguments in called]
        return {**turn, "tool_calls": calls} if calls else turn

    def _part_event(self, name: str, /, **fields: JsonValue) -> Sse:
        return self._item_event(name, content_index=0, **fields)

    def _item_event(self, name: str, /, **fields: JsonValue) -> Sse:
        return self._event(name, item_id=self._items[-1].id, output_index=len(self._items) - 1, **fields)

    def _event(self, name: str, /, **fields: JsonValue) -> Sse:
        number = self._sequence
        self._sequence += 1
        return Sse({"type": name, "sequence_number": number, **fields}, name)

    def _response(self, status: str) -> JsonObject:
        finish = self._finish if status in ("completed", "incomplete") else None
        output: list[JsonValue] = [] if status == "in_progress" else [item.whole() for item in self._items]
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._model,
            "output": output,
            **self._echo,
            "usage": None if finish is None else _usage(finish.usage),
        }


def _kind(channel: Channel) -> str:
    match channel:
        case "content" | "tool_call":
            return "message"
        case "reasoning":
            return "reasoning"
        case _:
            assert_never(channel)


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens, **predicted_if_any(usage)},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }

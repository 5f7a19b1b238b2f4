"""Answers in the shape of Chat Completions."""

import time
from collections.abc import Iterator, Sequence
from typing import assert_never

from pomona.gateway.body import JsonObject, JsonValue
from pomona.gateway.errors import ApiError, openai_body
from pomona.gateway.ids import new_id
from pomona.gateway.logprobs import chat_logprobs
from pomona.gateway.sse import COMMENT, DONE, Sse
from pomona.gateway.tool_calls import CallBegun, CallEnded, CallReader, CallText
from pomona.gateway.usage import openai_usage
from pomona.workers.messages import Delta, Finish, PositionLogprobs, TokenEvent, Usage


class _Choice:
    def __init__(self, calls: CallReader) -> None:
        self.reader = calls
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[JsonValue] = []
        self.logprobs: list[JsonValue] = []
        self.finish: Finish | None = None


class ChatWriter:
    keepalive = COMMENT
    last = DONE

    def __init__(
        self,
        model: str,
        *,
        calls: Sequence[CallReader],
        prompt_tokens: int,
        logprobs: bool,
        include_usage: bool,
        legacy: bool = False,
    ) -> None:
        """`calls` reads those of each choice; `legacy` tells the first one as a function_call."""
        self._id = new_id("chatcmpl-")
        self._created = int(time.time())
        self._model = model
        self._choices = [_Choice(reader) for reader in calls]
        self._prompt_tokens = prompt_tokens
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._legacy = legacy

    def begin(self) -> Iterator[Sse]:
        for index in range(len(self._choices)):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def feed(self, index: int, event: TokenEvent) -> Iterator[Sse]:
        choice = self._choices[index]
        positions = event.logprobs
        for part in choice.reader.read(event):
            match part:
                case Delta(channel, text):
                    match channel:
                        case "content" | "tool_call":
                            choice.content.append(text)
                            yield self._chunk(index, {"content": text}, positions)
                            choice.logprobs += chat_logprobs(positions)
                            positions = ()
                        case "reasoning":
                            choice.reasoning.append(text)
                            yield self._chunk(index, {"reasoning_content": text, "reasoning": text})
                        case _:
                            assert_never(channel)
                case CallBegun(number, id, name):
                    yield self._chunk(index, self._call(number, {"name": name, "arguments": ""}, id))
                    choice.calls.append(self._whole_call(id, name))
                case CallText(number, text):
                    yield self._chunk(index, self._call(number, {"arguments": text}))
                case CallEnded(number, arguments):
                    self._function(choice.calls[number])["arguments"] = arguments
                case _:
                    assert_never(part)
        if positions:
            choice.logprobs += chat_logprobs(positions)
            yield self._chunk(index, {"content": ""}, positions)
        if event.finish is not None and event.finish.reason in ("stop", "length"):
            choice.finish = event.finish
            yield self._chunk(index, {}, finish=event.finish)

    def end(self) -> Iterator[Sse]:
        if self._include_usage:
            yield Sse({**self._envelope("chat.completion.chunk"), "choices": [], "usage": self._usage()})

    def fail(self, error: ApiError) -> Iterator[Sse]:
        yield Sse(openai_body(error))

    def body(self) -> JsonObject:
        choices: list[JsonValue] = [self._whole(index, choice) for index, choice in enumerate(self._choices)]
        return {**self._envelope("chat.completion"), "choices": choices, "usage": self._usage()}

    def _whole(self, index: int, choice: _Choice) -> JsonObject:
        text = "".join(choice.content)
        message: JsonObject = {"role": "assistant", "content": text, "refusal": None}
        if choice.calls:
            message["content"] = text or None
            if self._legacy:
                message["function_call"] = choice.calls[0]
            else:
                message["tool_calls"] = choice.calls
        if choice.reasoning:
            message["reasoning_content"] = message["reasoning"] = "".join(choice.reasoning)
        logprobs: JsonObject | None = {"content": choice.logprobs, "refusal": None} if self._logprobs else None
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self._reason(choice, choice.finish) if choice.finish else None,
            "stop_reason": choice.finish.stop_text if choice.finish else None,
        }

    def _reason(self, choice: _Choice, finish: Finish) -> str:
        if finish.reason == "stop" and choice.calls:
            return "function_call" if self._legacy else "tool_calls"
        return finish.reason

    def _call(self, number: int, function: JsonObject, id: str | None = None) -> JsonObject:
        """A piece of a call as a delta; `id` is told with the first."""
        if self._legacy:
            return {"function_call": function} if number == 0 else {}
        head: JsonObject = {} if id is None else {"id": id, "type": "function"}
        return {"tool_calls": [{"index": number, **head, "function": function}]}

    def _whole_call(self, id: str, name: str) -> JsonObject:
        function: JsonObject = {"name": name, "arguments": ""}
        return function if self._legacy else {"id": id, "type": "function", "function": function}

    def _function(self, call: JsonValue) -> JsonObject:
        assert isinstance(call, dict), "made above"
        function = call if self._legacy else call["function"]
        assert isinstance(function, dict), "made above"
        return function

    def _envelope(self, kind: str) -> JsonObject:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(
        self,
        index: int,
        delta: JsonObject,
        positions: tuple[PositionLogprobs, ...] = (),
        finish: Finish | None = None,
    ) -> Sse:
        choice: JsonObject = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        if positions:
            choice["logprobs"] = {"content": chat_logprobs(positions), "refusal": None}
        if finish is not None:
            choice["finish_reason"] = self._reason(self._choices[index], finish)
            choice["stop_reason"] = finish.stop_text
        return Sse({**self._envelope("chat.completion.chunk"), "choices": [choice]})

    def _usage(self) -> JsonObject:
        usages: list[Usage] = [choice.finish.usage for choice in self._choices if choice.finish is not None]
        return openai_usage(self._prompt_tokens, usages, usages[0].cached_tokens if usages else 0)

"""OpenAI Chat Completions: `/v1/chat/completions`."""

import time
from collections.abc import Iterator
from typing import Annotated, assert_never

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pomona.gateway.body import AnyJson, JsonObject, JsonValue, RequestBody, read_body
from pomona.gateway.constraint_fields import Form
from pomona.gateway.errors import ApiError, invalid, openai_body
from pomona.gateway.fields import check_extras, tools_warning
from pomona.gateway.ids import new_id
from pomona.gateway.intake import Intake
from pomona.gateway.logprobs import chat_logprobs
from pomona.gateway.reasoning import thinking_of
from pomona.gateway.sampling import INT32, SamplerFields, StopList
from pomona.gateway.sse import COMMENT, DONE, Sse
from pomona.gateway.turns import chat_turn, merge_systems
from pomona.gateway.usage import openai_usage
from pomona.workers.messages import Finish, PositionLogprobs, TokenEvent, Usage

router = APIRouter()

MAX_CHOICES = 16


class StreamOptions(RequestBody):
    include_usage: bool | None = None


class ChatBody(SamplerFields):
    model: str
    messages: list[dict[str, AnyJson]] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=0, le=INT32)
    max_completion_tokens: int | None = Field(None, ge=0, le=INT32)
    stop: StopList | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: AnyJson = None
    tools: list[AnyJson] | None = None
    tool_choice: AnyJson = None
    functions: list[AnyJson] | None = None
    function_call: AnyJson = None
    modalities: list[str] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, AnyJson] | None = None


@router.post("/v1/chat/completions")
async def chat_completions(http: HttpRequest) -> Response:
    body = await read_body(http, ChatBody)
    check_extras(body, strict=True)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    if body.modalities not in (None, ["text"]):
        raise invalid("modalities: the models here write text only", "modalities")
    warning = tools_warning(body.tools, body.tool_choice) or tools_warning(body.functions, body.function_call)
    intake = Intake.of(http, body.model)
    turns = merge_systems([chat_turn(message, f"messages[{i}]") for i, message in enumerate(body.messages)])
    continued = bool(body.continue_final_message)
    if continued and body.add_generation_prompt:
        raise invalid("continue_final_message excludes add_generation_prompt", "continue_final_message")
    prompt = await intake.model.prompts.chat(
        turns,
        add_generation_prompt=not continued and body.add_generation_prompt is not False,
        continue_final_message=continued,
        variables=body.chat_template_kwargs,
        thinking=thinking_of(body, body.chat_template_kwargs),
    )
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    requests = await intake.requests(
        body,
        [prompt.tokens],
        wanted=wanted,
        stop=body.stop,
        choices=body.n or 1,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        form=Form(body.response_format, "response_format"),
        continues=continued,
        reasoning=prompt.reasoning,
    )
    options = body.stream_options
    writer = ChatWriter(
        body.model,
        choices=len(requests),
        prompt_tokens=len(prompt.tokens),
        logprobs=bool(body.logprobs),
        include_usage=options is not None and bool(options.include_usage),
    )
    return intake.answer(requests, writer, stream=bool(body.stream), warning=warning)


class _Choice:
    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.logprobs: list[JsonValue] = []
        self.finish: Finish | None = None


class ChatWriter:
    keepalive = COMMENT
    last = DONE

    def __init__(self, model: str, *, choices: int, prompt_tokens: int, logprobs: bool, include_usage: bool) -> None:
        self._id = new_id("chatcmpl-")
        self._created = int(time.time())
        self._model = model
        self._choices = [_Choice() for _ in range(choices)]
        self._prompt_tokens = prompt_tokens
        self._logprobs = logprobs
        self._include_usage = include_usage

    def begin(self) -> Iterator[Sse]:
        for index in range(len(self._choices)):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def feed(self, index: int, event: TokenEvent) -> Iterator[Sse]:
        choice = self._choices[index]
        positions = event.logprobs
        for delta in event.deltas:
            match delta.channel:
                case "content" | "tool_call":
                    choice.content.append(delta.text)
                    yield self._chunk(index, {"content": delta.text}, positions)
                    choice.logprobs += chat_logprobs(positions)
                    positions = ()
                case "reasoning":
                    choice.reasoning.append(delta.text)
                    yield self._chunk(index, {"reasoning_content": delta.text, "reasoning": delta.text})
                case _:
                    assert_never(delta.channel)
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
        message: JsonObject = {"role": "assistant", "content": "".join(choice.content), "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = message["reasoning"] = "".join(choice.reasoning)
        logprobs: JsonObject | None = {"content": choice.logprobs, "refusal": None} if self._logprobs else None
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": choice.finish.reason if choice.finish else None,
            "stop_reason": choice.finish.stop_text if choice.finish else None,
        }

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
            choice["finish_reason"] = finish.reason
            choice["stop_reason"] = finish.stop_text
        return Sse({**self._envelope("chat.completion.chunk"), "choices": [choice]})

    def _usage(self) -> JsonObject:
        usages: list[Usage] = [choice.finish.usage for choice in self._choices if choice.finish is not None]
        return openai_usage(self._prompt_tokens, usages, usages[0].cached_tokens if usages else 0)

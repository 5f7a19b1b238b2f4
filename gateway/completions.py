"""OpenAI Completions: `/v1/completions`, raw prompts as text or tokens."""

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, assert_never

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pomona.gateway.body import AnyJson, JsonObject, JsonValue, read_body
from pomona.gateway.chat import MAX_CHOICES, StreamOptions
from pomona.gateway.constraint_fields import Form
from pomona.gateway.errors import ApiError, invalid, openai_body
from pomona.gateway.fields import check_extras, unavailable
from pomona.gateway.ids import new_id
from pomona.gateway.intake import Intake
from pomona.gateway.logprobs import CompletionLogprobs
from pomona.gateway.prompts import Prompts
from pomona.gateway.sampling import INT32, SamplerFields, StopList
from pomona.gateway.sse import COMMENT, DONE, Sse
from pomona.gateway.usage import openai_usage
from pomona.workers.messages import Finish, TokenEvent

router = APIRouter()

MAX_STREAMS = 128
"""Prompts times choices of one request."""


class CompletionBody(SamplerFields):
    model: str
    prompt: AnyJson
    max_tokens: int | None = Field(None, ge=0, le=INT32)
    max_completion_tokens: int | None = Field(None, ge=0, le=INT32)
    stop: StopList | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    best_of: int | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: AnyJson = None


@router.post("/v1/completions")
async def completions(http: HttpRequest) -> Response:
    body = await read_body(http, CompletionBody)
    check_extras(body, strict=True)
    choices = body.n or 1
    if body.best_of not in (None, choices):
        raise unavailable(f"best_of {body.best_of} other than n", "best_of")
    if body.suffix:
        raise unavailable("suffix (text behind the gap)", "suffix")
    if body.echo and body.logprobs is not None:
        raise unavailable("logprobs of an echoed prompt", "logprobs")
    intake = Intake.of(http, body.model)
    prompts = await tokenise(body.prompt, intake.model.prompts)
    if len(prompts) * choices > MAX_STREAMS:
        raise invalid(f"{len(prompts)} prompts times n {choices} is more than {MAX_STREAMS}", "prompt")
    requests = await intake.requests(
        body,
        prompts,
        wanted=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        stop=body.stop,
        choices=choices,
        logprobs=body.logprobs,
        form=Form(body.response_format, "response_format"),
    )
    options = body.stream_options
    writer = CompletionWriter(
        body.model,
        echoes=[text for text in await _echoes(body, prompts, intake.model.prompts) for _ in range(choices)],
        choices=choices,
        prompt_tokens=sum(map(len, prompts)),
        logprobs=body.logprobs is not None,
        include_usage=options is not None and bool(options.include_usage),
    )
    return intake.answer(requests, writer, stream=bool(body.stream))


async def _echoes(body: CompletionBody, prompts: Sequence[list[int]], by: Prompts) -> list[str]:
    """What comes before each prompt's answer: the prompt as it was given, or nothing."""
    if not body.echo:
        return [""] * len(prompts)
    given = body.prompt if isinstance(body.prompt, list) and len(body.prompt) == len(prompts) else [body.prompt]
    return [
        text if isinstance(text, str) else await by.decode(prompt) for text, prompt in zip(given, prompts, strict=True)
    ]


async def tokenise(prompt: JsonValue, prompts: Prompts) -> list[list[int]]:
    """A string, a list of strings, a list of token ids, or a list of such lists. Raises ApiError."""
    if isinstance(prompt, list) and prompt and not all(_is_token(part) for part in prompt):
        found = [await _tokenise_one(part, prompts, f"prompt[{index}]") for index, part in enumerate(prompt)]
    else:
        found = [await _tokenise_one(prompt, prompts, "prompt")]
    return found


def _is_token(part: JsonValue) -> bool:
    return isinstance(part, int) and not isinstance(part, bool)


async def _tokenise_one(prompt: JsonValue, prompts: Prompts, where: str) -> list[int]:
    tokens: list[int] = []
    if isinstance(prompt, str):
        tokens = await prompts.text(prompt)
    elif isinstance(prompt, list) and all(_is_token(part) for part in prompt):
        tokens = [part for part in prompt if isinstance(part, int)]
        vocabulary = await prompts.vocabulary()
        stranger = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if stranger is not None:
            raise invalid(f"{where}: {stranger} is not a token id (0 to {vocabulary - 1})", where)
    else:
        raise invalid(f"{where} must be a string or a list of token ids", where)
    if not tokens:
        raise invalid(f"{where} is empty: there is nothing to complete", where)
    return tokens


class _Choice:
    def __init__(self, echo: str) -> None:
        self.text: list[str] = [echo]
        self.logprobs = CompletionLogprobs(len(echo))
        self.lists: dict[str, list[JsonValue]] = {}
        self.finish: Finish | None = None

    def extend(self, logprobs: JsonObject) -> None:
        for name, values in logprobs.items():
            assert isinstance(values, list)
            self.lists.setdefault(name, []).extend(values)


class CompletionWriter:
    keepalive = COMMENT
    last = DONE

    def __init__(
        self, model: str, *, echoes: list[str], choices: int, prompt_tokens: int, logprobs: bool, include_usage: bool
    ) -> None:
        self._id = new_id("cmpl-")
        self._created = int(time.time())
        self._model = model
        self._echoes = echoes
        self._choices = [_Choice(echo) for echo in echoes]
        self._per_prompt = choices
        self._prompt_tokens = prompt_tokens
        self._logprobs = logprobs
        self._include_usage = include_usage

    def begin(self) -> Iterator[Sse]:
        for index, echo in enumerate(self._echoes):
            if echo:
                yield self._chunk(index, echo)

    def feed(self, index: int, event: TokenEvent) -> Iterator[Sse]:
        choice = self._choices[index]
        text = ""
        for delta in event.deltas:
            match delta.channel:
                case "content" | "tool_call" | "reasoning":  # a raw prompt has no channels
                    text += delta.text
                case _:
                    assert_never(delta.channel)
        logprobs: JsonObject | None = None
        if event.logprobs:
            logprobs = choice.logprobs.render(event.logprobs)
            choice.extend(logprobs)
        choice.text.append(text)
        if text or logprobs is not None:
            yield self._chunk(index, text, logprobs)
        if event.finish is not None and event.finish.reason in ("stop", "length"):
            choice.finish = event.finish
            yield self._chunk(index, "", None, event.finish)

    def end(self) -> Iterator[Sse]:
        if self._include_usage:
            yield Sse({**self._envelope(), "choices": [], "usage": self._usage()})

    def fail(self, error: ApiError) -> Iterator[Sse]:
        yield Sse(openai_body(error))

    def body(self) -> JsonObject:
        choices: list[JsonValue] = []
        for index, choice in enumerate(self._choices):
            logprobs: JsonObject | None = None
            if self._logprobs:
                empty: JsonObject = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
                logprobs = {**empty, **choice.lists}
            choices.append(
                {
                    "index": index,
                    "text": "".join(choice.text),
                    "logprobs": logprobs,
                    "finish_reason": choice.finish.reason if choice.finish else None,
                    "stop_reason": choice.finish.stop_text if choice.finish else None,
                }
            )
        return {**self._envelope(), "choices": choices, "usage": self._usage()}

    def _envelope(self) -> JsonObject:
        return {"id": self._id, "object": "text_completion", "created": self._created, "model": self._model}

    def _chunk(self, index: int, text: str, logprobs: JsonObject | None = None, finish: Finish | None = None) -> Sse:
        choice: JsonObject = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}
        if finish is not None:
            choice["finish_reason"] = finish.reason
            choice["stop_reason"] = finish.stop_text
        return Sse({**self._envelope(), "choices": [choice]})

    def _usage(self) -> JsonObject:
        usages = [choice.finish.usage for choice in self._choices if choice.finish is not None]
        first = [choice.finish.usage for choice in self._choices[:: self._per_prompt] if choice.finish is not None]
        return openai_usage(self._prompt_tokens, usages, sum(usage.cached_tokens for usage in first))

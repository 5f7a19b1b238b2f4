"""OpenAI Chat Completions: `/v1/chat/completions`."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pomona.gateway.body import AnyJson, RequestBody, read_body
from pomona.gateway.chat_writer import ChatWriter
from pomona.gateway.constraint_fields import Form
from pomona.gateway.errors import invalid
from pomona.gateway.fields import check_extras
from pomona.gateway.intake import Intake
from pomona.gateway.reasoning import thinking_of
from pomona.gateway.sampling import INT32, SamplerFields, StopList
from pomona.gateway.tool_fields import AskedTools, chat_functions, chat_tools
from pomona.gateway.turns import chat_turn, merge_systems

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
    parallel_tool_calls: bool | None = None
    functions: list[AnyJson] | None = None
    function_call: AnyJson = None
    modalities: list[str] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, AnyJson] | None = None

    @property
    def legacy(self) -> bool:
        """Tools are named as they were before they were called tools."""
        return self.functions is not None or self.function_call is not None

    def asked_tools(self) -> AskedTools:
        """Raises ApiError."""
        if not self.legacy:
            return chat_tools(self.tools, self.tool_choice, self.parallel_tool_calls)
        if self.tools is not None or self.tool_choice is not None:
            raise invalid("functions and function_call are older names of tools and tool_choice: use one of the two")
        return chat_functions(self.functions, self.function_call)


@router.post("/v1/chat/completions")
async def chat_completions(http: HttpRequest) -> Response:
    body = await read_body(http, ChatBody)
    check_extras(body, strict=True)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    if body.modalities not in (None, ["text"]):
        raise invalid("modalities: the models here write text only", "modalities")
    asked = body.asked_tools()
    intake = Intake.of(http, body.model)
    use = await intake.tools(asked)
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
        tools=use.rendered,
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
        tools=use.tools,
    )
    options = body.stream_options
    writer = ChatWriter(
        body.model,
        calls=[use.reader("call_") for _ in requests],
        prompt_tokens=len(prompt.tokens),
        logprobs=bool(body.logprobs),
        include_usage=options is not None and bool(options.include_usage),
        legacy=body.legacy,
    )
    return intake.answer(requests, writer, stream=bool(body.stream), warning=use.warning)

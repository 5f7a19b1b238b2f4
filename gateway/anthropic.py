"""Anthropic Messages: `/v1/messages` and `/v1/messages/count_tokens`."""

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pomona.gateway.anthropic_turns import conversation
from pomona.gateway.anthropic_writer import MessageWriter
from pomona.gateway.body import AnyJson, JsonObject, encode_json, read_body
from pomona.gateway.cache_control import asks_to_cache
from pomona.gateway.constraint_fields import Form
from pomona.gateway.fields import check_extras
from pomona.gateway.intake import Intake
from pomona.gateway.prompts import Rendered
from pomona.gateway.reasoning import thinking_of
from pomona.gateway.sampling import INT32, SamplerFields, StopList
from pomona.gateway.tool_fields import AskedTools, message_tools
from pomona.gateway.tools import ToolUse

router = APIRouter()


class CountBody(SamplerFields):
    """What decides the prompt; other fields of Messages are welcome and change nothing."""

    model: str
    messages: list[dict[str, AnyJson]] = Field(min_length=1)
    system: AnyJson = None
    tools: list[AnyJson] | None = None
    tool_choice: AnyJson = None
    output_config: dict[str, AnyJson] | None = None
    chat_template_kwargs: dict[str, AnyJson] | None = None
    cache_control: AnyJson = None

    def check(self) -> AskedTools:
        """The tools that are offered. Raises ApiError for what is not available."""
        check_extras(self, strict=False)
        return message_tools(self.tools, self.tool_choice)

    def marked(self) -> bool:
        """True if the client marks what to cache. Raises ApiError for a mark of another shape."""
        return asks_to_cache(self.cache_control, self.tools, self.system, self.messages)

    async def prompt(self, intake: Intake, use: ToolUse) -> Rendered:
        """Raises ApiError."""
        turns, prefill = conversation(self.system, self.messages)
        return await intake.model.prompts.chat(
            turns,
            add_generation_prompt=not prefill,
            continue_final_message=prefill,
            variables=self.chat_template_kwargs,
            thinking=thinking_of(self, self.chat_template_kwargs, (self.output_config or {}).get("effort")),
            tools=use.rendered,
        )


class MessagesBody(CountBody):
    max_tokens: int = Field(ge=0, le=INT32)
    stop_sequences: StopList | None = None
    stream: bool | None = None


@router.post("/v1/messages")
async def messages(http: HttpRequest) -> Response:
    """max_tokens beyond the context is cut to what is left: agents send one fixed large number to every model."""
    body = await read_body(http, MessagesBody)
    asked = body.check()
    marked = body.marked()
    intake = Intake.of(http, body.model)
    use = await intake.tools(asked)
    prompt = await body.prompt(intake, use)
    requests = await intake.requests(
        body,
        [prompt.tokens],
        wanted=body.max_tokens,
        stop=body.stop_sequences,
        clamp=True,
        form=Form((body.output_config or {}).get("format"), "output_config.format"),
        continues=body.messages[-1].get("role") == "assistant",
        reasoning=prompt.reasoning,
        tools=use.tools,
    )
    cut = requests[0].limits.max_tokens < body.max_tokens
    writer = MessageWriter(
        body.model,
        calls=use.reader("toolu_"),
        prompt_tokens=len(prompt.tokens),
        cut_by_context=cut,
        creates_cache=marked and intake.services.config.cache.keeps,
        request_id=intake.log_id,
    )
    return intake.answer(requests, writer, stream=bool(body.stream), warning=use.warning)


@router.post("/v1/messages/count_tokens")
async def count_tokens(http: HttpRequest) -> Response:
    body = await read_body(http, CountBody)
    asked = body.check()
    body.marked()
    intake = Intake.of(http, body.model)
    prompt = await body.prompt(intake, await intake.tools(asked))
    count: JsonObject = {"input_tokens": len(prompt.tokens)}
    return Response(encode_json(count), media_type="application/json")

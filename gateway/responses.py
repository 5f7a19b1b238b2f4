"""OpenAI Responses: `/v1/responses`, with a bounded memory of earlier ones."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pomona.gateway.body import AnyJson, JsonObject, JsonValue, encode_json, read_body
from pomona.gateway.constraint_fields import Form
from pomona.gateway.errors import ApiError
from pomona.gateway.fields import check_extras, unavailable
from pomona.gateway.intake import Intake, services_of
from pomona.gateway.reasoning import thinking_of
from pomona.gateway.responses_turns import input_turns
from pomona.gateway.responses_writer import ResponseWriter
from pomona.gateway.sampling import INT32, SamplerFields, StopList
from pomona.gateway.tool_fields import response_tools
from pomona.gateway.turns import merge_systems

router = APIRouter()

LOGPROBS = "message.output_text.logprobs"


class ResponsesBody(SamplerFields):
    model: str
    input: AnyJson
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=0, le=INT32)
    stop: StopList | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    text: dict[str, AnyJson] | None = None
    tools: list[AnyJson] | None = None
    tool_choice: AnyJson = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, AnyJson] | None = None
    truncation: str | None = None
    background: bool | None = None
    conversation: AnyJson = None
    prompt: AnyJson = None
    user: str | None = None
    chat_template_kwargs: dict[str, AnyJson] | None = None

    def check(self) -> list[str]:
        """Raises ApiError for what is not available; returns warnings for the client."""
        check_extras(self, strict=False)
        for name, value in (("background", self.background), ("conversation", self.conversation)):
            if value:
                raise unavailable(name, name)
        if self.prompt is not None:
            raise unavailable("prompt (a stored template)", "prompt")
        warnings = []
        if self.truncation == "auto":
            warnings.append("truncation auto is not done: a conversation that is too long is refused")
        return warnings

    def echo(self) -> JsonObject:
        """The fields of the request that a response repeats."""
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "reasoning": self.reasoning or {"effort": None, "summary": None},
            "store": self.store is not False,
            "temperature": self.temperature,
            "text": self.text or {"format": {"type": "text"}},
            "tool_choice": self.tool_choice or "auto",
            "tools": self.tools or [],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": self.truncation or "disabled",
            "user": self.user,
        }


@router.post("/v1/responses")
async def create_response(http: HttpRequest) -> Response:
    """max_output_tokens beyond the context is cut to what is left, as on /v1/messages."""
    body = await read_body(http, ResponsesBody)
    warnings = body.check()
    asked = response_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    intake = Intake.of(http, body.model)
    use = await intake.tools(asked)
    if use.warning is not None:
        warnings.append(use.warning)
    turns: list[JsonObject] = []
    if body.previous_response_id is not None:
        previous = intake.services.stored.get(intake.owner, body.previous_response_id)
        if previous is None:
            raise _not_found(body.previous_response_id, "previous_response_id")
        turns += previous.turns
    turns += input_turns(body.input)
    head: list[JsonObject] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    prompt = await intake.model.prompts.chat(
        merge_systems(head + turns),
        variables=body.chat_template_kwargs,
        thinking=thinking_of(body, body.chat_template_kwargs),
        tools=use.rendered,
    )
    wants_logprobs = body.top_logprobs is not None or LOGPROBS in (body.include or ())
    requests = await intake.requests(
        body,
        [prompt.tokens],
        wanted=body.max_output_tokens,
        stop=body.stop,
        logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
        clamp=True,
        form=Form((body.text or {}).get("format"), "text.format"),
        reasoning=prompt.reasoning,
        tools=use.tools,
    )

    def keep(response: JsonObject, answer: JsonObject) -> None:
        if body.store is not False:
            answered = [answer]
            if requests[0].limits.max_tokens == 0:
                answered = []  # nothing was said: a warm-up, and what goes on from it begins with the same tokens
            intake.services.stored.put(intake.owner, response, [*turns, *answered])

    sampling = requests[0].sampling
    echo: JsonObject = {**body.echo(), "temperature": sampling.temperature, "top_p": sampling.top_p}
    writer = ResponseWriter(body.model, calls=use.reader("call_"), echo=echo, on_end=keep)
    return intake.answer(requests, writer, stream=bool(body.stream), warning="; ".join(warnings) or None)


@router.get("/v1/responses/{response_id}")
async def get_response(http: HttpRequest, response_id: str) -> Response:
    stored = services_of(http).stored.get(_owner(http), response_id)
    if stored is None:
        raise _not_found(response_id, "response_id")
    return Response(encode_json(stored.response), media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(http: HttpRequest, response_id: str) -> Response:
    if not services_of(http).stored.delete(_owner(http), response_id):
        raise _not_found(response_id, "response_id")
    body: dict[str, JsonValue] = {"id": response_id, "object": "response", "deleted": True}
    return Response(encode_json(body), media_type="application/json")


def _owner(http: HttpRequest) -> str:
    labels: dict[str, str] = http.scope["state"]
    return labels.get("owner", "")


def _not_found(response_id: str, param: str) -> ApiError:
    return ApiError(
        404,
        f"no response {response_id[:80]!r} is held: only the latest ones are, in memory, unless store was false; "
        "send the whole conversation as input",
        code="previous_response_not_found" if param == "previous_response_id" else "response_not_found",
        param=param,
    )

"""From a validated body to requests for the scheduler: the part that all generating routes share."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pomona.gateway.cache_salt import salt_of
from pomona.gateway.catalog import ServedModel
from pomona.gateway.constraint_fields import Form, constraint_of
from pomona.gateway.errors import ApiError, invalid, request_id
from pomona.gateway.ids import new_request_id
from pomona.gateway.sampling import SamplerFields, choice_seed, room
from pomona.gateway.services import Services
from pomona.gateway.serving import AnswerResponse
from pomona.gateway.speculation import resolve
from pomona.gateway.sse import AnswerWriter
from pomona.gateway.tool_fields import AskedTools
from pomona.gateway.tools import ToolUse, use_of
from pomona.runtime.wire import replace
from pomona.workers.messages import Reasoning, Request, Tools

log = logging.getLogger("pomona.gateway")


def services_of(http: HttpRequest) -> Services:
    services: Services = http.app.state.services
    return services


@dataclass(frozen=True)
class Intake:
    """One HTTP request with the model that it names."""

    services: Services
    model: ServedModel
    client: str
    owner: str
    """Whose API key it was; empty where none are needed."""
    log_id: str
    tenant: str
    """Stands for the API key where each has stored prefixes of its own; else empty."""

    @classmethod
    def of(cls, http: HttpRequest, model_id: str) -> Self:
        """Raises ApiError for an unknown or failed model, and while the gateway closes."""
        services = services_of(http)
        services.closing.check()
        model = services.catalog.resolve(model_id)
        state = next((state for state in services.source.models if state.id == model_id), None)
        if state is not None and state.state == "failed":
            reason = f": {state.detail}" if state.detail else ""
            raise ApiError(503, f"model {model_id} has failed{reason}", code="unavailable", retry_after_s=30)
        labels: dict[str, str] = http.scope["state"]
        client, owner, tenant = (labels.get(name, "") for name in ("client", "owner", "tenant"))
        return cls(services, model, client, owner, request_id(http.scope), tenant)

    @property
    def context(self) -> int:
        return self.model.context(self.services.source)

    async def tools(self, asked: AskedTools) -> ToolUse:
        """Raises ApiError 400 for what the model cannot be held to."""
        dialect = await self.model.prompts.tool_dialect() if asked.tools else None
        return await use_of(asked, dialect, self.model.id, self.services.grammars)

    async def requests(
        self,
        fields: SamplerFields,
        prompts: Sequence[Sequence[int]],
        *,
        wanted: int | None,
        stop: list[str] | None,
        choices: int = 1,
        logprobs: int | None = None,
        clamp: bool = False,
        form: Form | None = None,
        continues: bool = False,
        reasoning: Reasoning | None = None,
        tools: Tools | None = None,
    ) -> list[Request]:
        """One request for each prompt and choice, choices of a prompt side by side. Raises ApiError.

        `wanted` is the client's max_tokens; with `clamp` it is cut to what the context leaves instead of refused.
        `form`: what the route's own field says of the answer's; `continues`: the prompt holds the answer's beginning.
        `reasoning`: how the model tells its thoughts from its answer; `tools`: how it calls them.
        """
        most = self.services.config.scheduler.max_per_client
        if most and len(prompts) * choices > most:
            raise invalid(
                f"{len(prompts) * choices} answers at once (n for each prompt) are more than a client may have running "
                f"or waiting, {most} (scheduler.max_per_client); ask for fewer, or raise the setting",
                "n" if choices > 1 else "prompt",
                "client_limit",
            )
        if tools is not None and tools.required and continues:
            raise invalid(
                "tool_choice asks for a call, which no message that was begun can go on with; leave out one of the two",
                "tool_choice",
            )
        methods = self.model.methods(self.services.source)
        asked = constraint_of(fields, form)
        if asked is not None:
            if continues:
                raise invalid(
                    f"{asked.param}: the answer's form is fixed from its first token on, so it cannot go on from a "
                    "message that was begun; leave out one of the two",
                    asked.param,
                )
            await self.services.grammars.check(asked.constraint, asked.param)
        speculation = resolve(fields.speculation, self.model.id, self.model.speculation, methods)
        sampling = fields.sampling(self.model.defaults, await self.model.prompts.vocabulary())
        requests = []
        for prompt in prompts:
            left = room(len(prompt), wanted, self.context, self.model.id, clamp=clamp)
            limits = fields.limits(left, stop)
            for choice in range(choices):
                requests.append(
                    Request(
                        id=new_request_id(),
                        model=self.model.id,
                        prompt=tuple(prompt),
                        sampling=replace(sampling, seed=choice_seed(sampling.seed, choice)),
                        limits=limits,
                        logprobs=logprobs,
                        client=self.client,
                        priority=fields.priority or 0,
                        cache_salt=salt_of(self.tenant, fields.cache_salt or ""),
                        speculation=speculation,
                        constraint=None if asked is None else asked.constraint,
                        reasoning=reasoning,
                        tools=tools,
                    )
                )
        return requests

    def answer(
        self, requests: Sequence[Request], writer: AnswerWriter, *, stream: bool, warning: str | None = None
    ) -> Response:
        headers = {}
        if warning is not None:
            log.warning("request-warning request=%s warning=%r", self.log_id, warning)
            headers["x-pomona-warning"] = warning
        return AnswerResponse(self.services, requests, writer, stream=stream, headers=headers)

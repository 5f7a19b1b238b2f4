"""`/v1/models`: OpenAI's list, or Anthropic's where the client sends anthropic-version."""

from datetime import UTC, datetime

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pomona.gateway.body import JsonObject, JsonValue, encode_json
from pomona.gateway.catalog import ServedModel
from pomona.gateway.errors import dialect
from pomona.gateway.intake import services_of
from pomona.gateway.services import Services

router = APIRouter()

CREATED = 0
"""Release dates are not known; Anthropic's API names the epoch for that case."""


@router.get("/v1/models")
async def list_models(http: HttpRequest) -> Response:
    services = services_of(http)
    served = list(services.catalog.models.values())
    data: list[JsonValue] = [_describe(model, http, services) for model in served]
    body: JsonObject = {"object": "list", "data": data}
    if dialect(http.scope) == "anthropic":
        body = {
            "data": data,
            "has_more": False,
            "first_id": served[0].id if served else None,
            "last_id": served[-1].id if served else None,
        }
    return Response(encode_json(body), media_type="application/json")


@router.get("/v1/models/{model_id:path}")
async def get_model(http: HttpRequest, model_id: str) -> Response:
    """Ids may contain slashes."""
    services = services_of(http)
    body = _describe(services.catalog.resolve(model_id), http, services)
    return Response(encode_json(body), media_type="application/json")


def _describe(model: ServedModel, http: HttpRequest, services: Services) -> JsonObject:
    context = model.context(services.source)
    if dialect(http.scope) == "anthropic":
        return {
            "type": "model",
            "id": model.id,
            "display_name": model.id,
            "created_at": datetime.fromtimestamp(CREATED, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycle": "active",
            "max_input_tokens": context,
            "max_tokens": context,
        }
    methods = model.methods(services.source)
    return {
        "id": model.id,
        "object": "model",
        "created": CREATED,
        "owned_by": "pomona",
        "max_model_len": context,
        "context_window": context,
        "speculation_methods": methods if methods is None else list(methods),
    }

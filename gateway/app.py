"""The HTTP application: routes, and what surrounds every one of them."""

import json
import logging
from http import HTTPStatus

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp

from pomona.gateway import anthropic, chat, completions, health, models, responses
from pomona.gateway.auth import Authenticate
from pomona.gateway.body import BodyError
from pomona.gateway.errors import ApiError, error_response, invalid
from pomona.gateway.limits import LimitBody
from pomona.gateway.services import Services
from pomona.gateway.watch import Watch

log = logging.getLogger("pomona.gateway")

ROUTERS = (
    chat.router,
    completions.router,
    responses.router,
    anthropic.router,
    models.router,
    health.router,
)


def create_app(services: Services) -> ASGIApp:
    """The application; requests pass, from the outside in, `Watch`, `Authenticate`, `LimitBody`, the route."""
    app = FastAPI(title="Pomona", openapi_url=None, redirect_slashes=False)
    app.state.services = services
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(BodyError, _body_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RecursionError, _too_deep)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _bug)
    gateway = services.config.gateway
    limited = LimitBody(app, gateway.max_body_bytes)
    guarded = Authenticate(limited, gateway.api_keys, apart=gateway.cache_salt_per_key)
    return Watch(guarded, services.metrics)


async def _api_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, http.scope)


async def _body_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, BodyError)
    return error_response(invalid(str(error), error.param), http.scope)


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    """Routes and methods that do not exist."""
    assert isinstance(error, HTTPException)
    path = json.dumps(http.url.path[:200])
    match error.status_code:
        case 404:
            text, code = f"there is no route {path}", "route_not_found"
        case 405:
            text, code = f"{path} does not take {http.method}", "method_not_allowed"
        case status:
            text, code = HTTPStatus(status).phrase, "http_error"
    headers = dict(error.headers or {})
    return error_response(ApiError(error.status_code, text, code=code, headers=headers), http.scope)


async def _too_deep(http: HttpRequest, error: Exception) -> Response:
    """JSON that could be read and yet is deeper than templates or the answer's encoder go."""
    del error
    return error_response(invalid("the body is nested too deeply"), http.scope)


async def _gone(http: HttpRequest, error: Exception) -> Response:
    """The client left while it was sending; nobody reads this."""
    del http, error
    return Response(status_code=499)


async def _bug(http: HttpRequest, error: Exception) -> Response:
    """The traceback goes to the log, by way of the server; the client gets none of it."""
    del error
    return error_response(ApiError(500, "internal error; the server's log has it", code="internal"), http.scope)

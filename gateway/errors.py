"""What went wrong with a request, and how each API says so."""

from typing import Literal, assert_never

from starlette.responses import Response
from starlette.types import Scope

from pomona.gateway.body import JsonObject, encode_json
from pomona.scheduler.client import Rejected

Dialect = Literal["openai", "anthropic"]
PROMPT = "(prompt)"
"""Names the prompt in an `ApiError`; the answer says what its route calls it."""
PROMPT_FIELDS = {"/v1/completions": "prompt", "/v1/responses": "input"}


class ApiError(Exception):
    """A refusal or failure for the client; `message` names the thing and the mend, and holds no secret or traceback."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["retry-after"] = str(max(1, retry_after_s))


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def context_too_long(prompt: int, wanted: int | None, context: int, model: str) -> ApiError:
    """`wanted` is None where the prompt alone is too long; all counts in tokens."""
    asked = f"{prompt} tokens of prompt" + ("" if wanted is None else f" and max_tokens {wanted}")
    mend = "shorten the prompt" if wanted is None else "shorten the prompt or lower max_tokens"
    return ApiError(
        400,
        f"the context of model {model} is {context} tokens, and the request needs {asked}: {mend}",
        code="context_length_exceeded",
        param=PROMPT if wanted is None else "max_tokens",
    )


def from_rejection(rejected: Rejected) -> ApiError:
    retry = rejected.retry_after_s
    match rejected.kind:
        case "unknown_model":
            return ApiError(404, rejected.message, code="model_not_found", param="model")
        case "context_length" | "prompt_length":
            return ApiError(400, rejected.message, code="context_length_exceeded", param=PROMPT)
        case "kv_memory":
            return ApiError(400, rejected.message, code="kv_memory", param="max_tokens")
        case "queue_full" | "client_limit":
            return ApiError(429, rejected.message, code=rejected.kind, retry_after_s=retry or 1)
        case "timed_out":
            return ApiError(504, rejected.message, code="timed_out", headers={"x-should-retry": "false"})
        case "waited_too_long":
            return ApiError(503, rejected.message, code="waited_too_long", retry_after_s=retry or 5)
        case "unavailable":
            return ApiError(503, rejected.message, code="unavailable", retry_after_s=retry or 5)
        case "poison":
            return ApiError(500, rejected.message, code="request_failed", headers={"x-should-retry": "false"})
        case _:
            assert_never(rejected.kind)


def dialect(scope: Scope) -> Dialect:
    """Which API's shapes a request expects: by route, and by the anthropic-version header on the shared ones."""
    path: str = scope["path"]
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return "anthropic"
    if path.startswith("/v1/models") and any(name == b"anthropic-version" for name, _ in scope["headers"]):
        return "anthropic"
    return "openai"


def openai_type(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 404:
            return "not_found_error"
        case 429:
            return "rate_limit_error"
        case _:
            return "server_error" if status >= 500 else "invalid_request_error"


def anthropic_type(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 404:
            return "not_found_error"
        case 413:
            return "request_too_large"
        case 429:
            return "rate_limit_error"
        case 503 | 529:
            return "overloaded_error"
        case 504:
            return "timeout_error"
        case _:
            return "api_error" if status >= 500 else "invalid_request_error"


def openai_body(error: ApiError) -> JsonObject:
    detail: JsonObject = {
        "message": error.message,
        "type": openai_type(error.status),
        "param": None if error.param == PROMPT else error.param,
        "code": error.code,
    }
    return {"error": detail}


def anthropic_body(error: ApiError, request_id: str) -> JsonObject:
    told = error.param in (None, PROMPT) or error.message.startswith(error.param)
    message = error.message if told else f"{error.param}: {error.message}"
    detail: JsonObject = {"type": anthropic_type(error.status), "message": message}
    return {"type": "error", "error": detail, "request_id": request_id}


def request_id(scope: Scope) -> str:
    """The id that the outermost layer gave this HTTP request; it is in the response headers and in the log."""
    state: dict[str, str] = scope.get("state", {})
    return state.get("request_id", "")


def error_response(error: ApiError, scope: Scope) -> Response:
    if error.param == PROMPT:
        error.param = PROMPT_FIELDS.get(scope["path"], "messages")
    body = anthropic_body(error, request_id(scope)) if dialect(scope) == "anthropic" else openai_body(error)
    return Response(encode_json(body), error.status, error.headers, "application/json")

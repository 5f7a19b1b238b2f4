"""JSON in and out: a request body becomes a validated model, or an error that names the place."""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn, TypeAlias, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request as HttpRequest

JsonValue: TypeAlias = str | int | float | bool | list["JsonValue"] | dict[str, "JsonValue"] | None
JsonObject: TypeAlias = dict[str, JsonValue]

if TYPE_CHECKING:
    AnyJson: TypeAlias = JsonValue
else:
    AnyJson = object  # a field of a body that is JSON already: nothing to validate


class RequestBody(BaseModel):
    """Fields of a request; unknown ones are kept in `model_extra` for the route to judge."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())


class BodyError(ValueError):
    """The body is not what the route takes; `param` is the path of the field, as in `messages[0].role`."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


B = TypeVar("B", bound=RequestBody)

_encoder = msgspec.json.Encoder()


def encode_json(value: Mapping[str, JsonValue]) -> bytes:
    return _encoder.encode(value)


async def read_body(http: HttpRequest, model: type[B]) -> B:
    """Raises BodyError."""
    return validate(parse_json(await http.body()), model)


def parse_json(body: bytes) -> object:
    """Stricter than `json.loads`: no NaN or Infinity, no lone surrogates, no depth that ends the interpreter."""
    try:
        value: object = json.loads(body, parse_constant=_no_constant)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise BodyError(
            f"the body is not valid JSON: {error.msg} at line {error.lineno} column {error.colno} (char {error.pos})"
        ) from error
    except UnicodeDecodeError as error:
        raise BodyError(f"the body is not UTF-8: byte {error.start}") from error
    except UnicodeEncodeError as error:
        raise BodyError("the body holds half of a surrogate pair (\\ud800 to \\udfff), which is not text") from error
    except RecursionError as error:
        raise BodyError("the body is nested too deeply") from error
    except ValueError as error:
        raise BodyError(f"the body is not valid JSON: {error}") from error
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def validate(value: object, model: type[B]) -> B:
    if not isinstance(value, dict):
        raise BodyError("the body must be a JSON object")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = field_path(first["loc"])
        if first["type"] == "missing":
            raise BodyError(f"{where} is required", where) from error
        text = first["msg"].removeprefix("Value error, ")
        shown = json.dumps(first["input"], default=str)
        raise BodyError(f"{where}: {text}; got {shown[:80]}", where) from error


def field_path(loc: tuple[int | str, ...]) -> str:
    """`("messages", 1, "role")` is `messages[1].role`."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc)
    return re.sub(r"^\.", "", path)

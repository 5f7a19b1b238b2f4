"""The fields that fix an answer's form, of all APIs and of older clients: one constraint, or none. Pure."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import Field

from pomona.gateway.body import AnyJson, JsonValue, RequestBody
from pomona.gateway.constraint_schema import check_keywords, check_strict
from pomona.gateway.errors import invalid
from pomona.gateway.gbnf import as_lark
from pomona.gateway.structural_tag import grammar_of_tags
from pomona.workers.messages import Constraint

STRUCTURED = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class ConstraintFields(RequestBody):
    """On every generating route."""

    structured_outputs: dict[str, AnyJson] | None = None
    guided_json: AnyJson = None
    guided_regex: str | None = Field(None, max_length=1_000_000)
    guided_choice: AnyJson = None
    guided_grammar: str | None = Field(None, max_length=1_000_000)


class Form(NamedTuple):
    """A format as the route's own API names it."""

    value: JsonValue
    param: str


class Asked(NamedTuple):
    constraint: Constraint
    param: str
    """The field that it came from."""


def constraint_of(fields: ConstraintFields, form: Form | None = None) -> Asked | None:
    """Raises ApiError 400 for what is no constraint, is not supported, or is named twice."""
    asked = [] if form is None else [_of_form(form)]
    if fields.structured_outputs is not None:
        asked.append(_structured(fields.structured_outputs))
    for kind in ("json", "regex", "choice", "grammar"):
        value = getattr(fields, f"guided_{kind}")
        if value is not None:
            asked.append(_of_kind(kind, value, f"guided_{kind}"))
    found = [each for each in asked if each is not None]
    if len(found) > 1:
        raise invalid(f"{found[0].param} and {found[1].param} both fix the answer's form; name one", found[1].param)
    return found[0] if found else None


def _of_form(form: Form) -> Asked | None:
    value, param = form
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid(f"{param} must be an object with a type", param)
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            return Asked(Constraint("json_object"), param)
        case "json_schema":
            within = value.get("json_schema")
            holder, where = (within, f"{param}.json_schema") if isinstance(within, dict) else (value, param)
            if holder.get("schema") is None:
                raise invalid(f"{where}.schema is missing", f"{where}.schema")
            strict = holder.get("strict")
            if strict not in (None, True, False):
                raise invalid(f"{where}.strict must be true or false", f"{where}.strict")
            return _of_schema(holder["schema"], f"{where}.schema", strict=bool(strict))
        case "structural_tag":
            return Asked(Constraint("lark", grammar_of_tags(value, param)), param)
        case kind:
            raise invalid(
                f"{param}.type {kind!r} is not supported; there are text, json_object, json_schema and structural_tag",
                f"{param}.type",
            )


def _structured(value: Mapping[str, JsonValue]) -> Asked | None:
    given = {name: each for name, each in value.items() if each is not None and each is not False}
    for name in given:
        if name not in STRUCTURED:
            raise invalid(
                f"structured_outputs.{name[:80]} is not supported; there are {', '.join(STRUCTURED)}",
                f"structured_outputs.{name[:80]}",
            )
    if len(given) > 1:
        raise invalid(f"structured_outputs: {' and '.join(given)} exclude each other; name one", "structured_outputs")
    return next((_of_kind(name, each, f"structured_outputs.{name}") for name, each in given.items()), None)


def _of_kind(kind: str, value: JsonValue, param: str) -> Asked:
    match kind, value:
        case "json", str():
            return _of_schema(_json(value, param), param)
        case "json", _:
            return _of_schema(value, param)
        case "json_object", _:
            return Asked(Constraint("json_object"), param)
        case "regex", str() if value:
            return Asked(Constraint("regex", value), param)
        case "choice", list() if value and all(isinstance(each, str) for each in value):
            return Asked(Constraint("choice", json.dumps(value, ensure_ascii=False)), param)
        case "choice", _:
            raise invalid(f"{param} must be a list of one or more strings", param)
        case "structural_tag", str():
            return _of_kind(kind, _json(value, param), param)
        case "structural_tag", dict():
            return Asked(Constraint("lark", grammar_of_tags(value, param)), param)
        case "structural_tag", _:
            raise invalid(f"{param} must be an object, or its JSON", param)
        case "grammar", str() if value.strip():
            return Asked(Constraint("lark", _lark(value, param)), param)
        case _:
            raise invalid(f"{param} must be a text that is not empty", param)


def _json(text: str, param: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(f"{param} is no JSON: {error}", param) from error
    return value


def _of_schema(schema: JsonValue, param: str, *, strict: bool = False) -> Asked:
    if not isinstance(schema, dict | bool):
        raise invalid(f"{param} must be a JSON Schema: an object, true or false", param)
    if strict:
        check_strict(schema, param)
    check_keywords(schema, param)
    return Asked(Constraint("json_schema", json.dumps(schema, ensure_ascii=False)), param)


def _lark(text: str, param: str) -> str:
    try:
        return as_lark(text)
    except ValueError as error:
        raise invalid(f"{param}: {error}", param) from error

"""The language of a call's text, from the schemas of the tools that may be called. Pure."""

import copy
import json
from collections.abc import Collection, Sequence

from pomona.gateway.body import JsonObject
from pomona.gateway.tool_fields import Tool
from pomona.workers.constraint.schema import schemas
from pomona.workers.messages import Constraint

_ANY: JsonObject = {"type": "object"}


def arguments_constraint(tool: Tool, *, bound: bool) -> Constraint:
    """Of a call whose mark names the tool; if not `bound`, any object will do."""
    return Constraint("json_schema", json.dumps(_arguments(tool, "") if bound else _ANY, ensure_ascii=False))


def call_constraint(tools: Sequence[Tool], bound: Collection[str]) -> Constraint:
    """Of `{"name": …, "arguments": {…}}` for one of `tools`; arguments of those in `bound` follow their schema."""
    if len(tools) == 1:
        schema = _call(tools[0], bound, "#")
    else:
        schema = {"anyOf": [_call(tool, bound, f"#/anyOf/{index}") for index, tool in enumerate(tools)]}
    return Constraint("json_schema", json.dumps(schema, ensure_ascii=False))


def _call(tool: Tool, bound: Collection[str], place: str) -> JsonObject:
    arguments = _arguments(tool, f"{place}/properties/arguments") if tool.name in bound else _ANY
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _arguments(tool: Tool, place: str) -> JsonObject:
    """A tool's schema as it reads at another place of a document: what it refers to within itself moves along."""
    schema = copy.deepcopy(tool.parameters)
    for name in ("$schema", "$id"):
        schema.pop(name, None)
    if place:
        for _, one in schemas(schema):
            reference = one.get("$ref")
            if isinstance(reference, str) and reference.startswith("#"):
                one["$ref"] = place + reference[1:]
    return {"type": "object", **schema}

"""What is said of a client's JSON Schema before it is compiled, with the path of what is wrong. Pure."""

from collections.abc import Mapping
from typing import cast

from pomona.gateway.errors import invalid
from pomona.workers.constraint.schema import Json, schemas

REFUSED = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "$recursiveAnchor",
    }
)
"""Keywords that change which answers are valid, and that no grammar here expresses."""
FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
NOT_STRICT = frozenset({"allOf"})


def check_keywords(schema: object, param: str) -> None:
    """Raises ApiError 400 with keyword and path for what would not be followed."""
    for path, one in _all(schema):
        for keyword in one:
            if keyword in REFUSED:
                raise invalid(f"{param}: the keyword {keyword!r} at {path} is not supported; leave it out", param)
        named = one.get("format")
        if isinstance(named, str) and named not in FORMATS and _may_be_text(one):
            known = ", ".join(sorted(FORMATS - {"unknown"}))
            raise invalid(f"{param}: the format {named!r} at {path} is not supported; there are {known}", param)


def check_strict(schema: object, param: str) -> None:
    """OpenAI's rules for `strict: true`. Raises ApiError 400 with the path and what is missing there."""
    if not isinstance(schema, dict) or "anyOf" in schema or schema.get("type") != "object":
        raise invalid(f'{param}: strict wants {{"type": "object"}} at the root, without anyOf; wrap it in one', param)
    for path, one in _all(schema):
        for keyword in one:
            if keyword in NOT_STRICT:
                raise invalid(f"{param}: strict does not allow {keyword!r} at {path}; leave it or strict out", param)
        if one.get("type") != "object" and "properties" not in one:
            continue
        if one.get("additionalProperties") is not False:
            raise invalid(f'{param}: strict wants "additionalProperties": false at {path}', param)
        named, required = one.get("properties"), one.get("required")
        wanted = list(required) if isinstance(required, list) else []
        missing = [name for name in named if name not in wanted] if isinstance(named, dict) else []
        if missing:
            raise invalid(
                f"{param}: strict wants every property in required, and {path} lacks {', '.join(map(repr, missing))}; "
                'an optional one has the type ["…", "null"]',
                param,
            )


def _all(schema: object) -> list[tuple[str, Mapping[str, Json]]]:
    return list(schemas(cast("dict[str, Json]", schema))) if isinstance(schema, dict) else []


def _may_be_text(schema: Mapping[str, Json]) -> bool:
    kind = schema.get("type", "string")
    return kind == "string" or (isinstance(kind, list) and "string" in kind)

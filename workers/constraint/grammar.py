"""A constraint as llguidance's grammar text: what the gateway checks and what a worker runs is the very same."""

import json
from collections.abc import Iterator
from typing import cast

from llguidance import LLMatcher, LLParserLimits

from pomona.workers.constraint.schema import Json, schemas
from pomona.workers.messages import Constraint

WIDEST_GAP = 32
"""Characters of blank space between two tokens of JSON, at most: a model that loves blanks comes to an end."""
OPTIONS: dict[str, Json] = {
    "whitespace_flexible": True,
    "whitespace_pattern": rf"[ \t\n\r]{{1,{WIDEST_GAP}}}",
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
    # Without `u`: llguidance compares keys as they are spelled, so that "\u0061" would be a second "a" of any type.
    "json_allowed_escapes": '"\\bfnrt',
    "json_allow_general_unicode_escapes": False,
}
"""How JSON is written. They override what a schema says of itself under `x-guidance`."""


def limits() -> LLParserLimits:
    """Bounds of a grammar's states, for whoever compiles one; their errors do not quote the grammar."""
    return LLParserLimits(verbose_errors=False)


def grammar_of(constraint: Constraint) -> str:
    """The grammar for `LLMatcher`; JSON of schemas, regular expressions and Lark itself are not looked into here.

    Raises ValueError for a schema or a choice that is no JSON, or not of the kind that it must be, and for a text that
    must be written as it stands and has a character that could only be written as `\\uXXXX`.
    """
    match constraint.kind:
        case "json_schema":
            return _json_grammar(schema_grammar(constraint.text))
        case "json_object":
            return _json_grammar(_with_options({"type": "object"}))
        case "regex":
            return LLMatcher.grammar_from_regex(constraint.text)
        case "choice":
            return _choice_grammar(constraint.text)
        case "lark":
            return constraint.text


def schema_grammar(text: str) -> dict[str, Json]:
    """A schema as llguidance reads it, of its JSON; raises ValueError as `grammar_of` does."""
    schema = _parsed(text, "schema")
    if isinstance(schema, bool):
        return _with_options({} if schema else {"not": {}})
    if not isinstance(schema, dict):
        raise ValueError(f"the schema must be a JSON object, not {type(schema).__name__}")
    for path, value in _fixed_texts(schema):
        if any(_unwritable(character) for character in value):
            raise ValueError(f"{path}: a control character can only be written as \\u, which is not supported here")
    return _with_options(schema)


def _with_options(schema: dict[str, Json]) -> dict[str, Json]:
    return {**schema, "x-guidance": OPTIONS}


def _json_grammar(schema: dict[str, Json]) -> str:
    return json.dumps({"grammars": [{"json_schema": schema}]}, ensure_ascii=False)


def _choice_grammar(text: str) -> str:
    options = _parsed(text, "choice")
    if not isinstance(options, list) or not options or not all(isinstance(option, str) for option in options):
        raise ValueError("the choice must be a list of one or more strings")
    # One terminal, which is one automaton: as alternatives of a rule a few thousand would be too many for the parser.
    written = (json.dumps(option, ensure_ascii=False).replace("\x7f", "\\x7F") for option in options)
    return "start: CHOICE\nCHOICE: " + " | ".join(written)


def _parsed(text: str, name: str) -> Json:
    try:
        return cast(Json, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the {name} is no JSON: {error}") from error


def _fixed_texts(root: dict[str, Json]) -> Iterator[tuple[str, str]]:
    """Every string that a schema wants written as it stands, a value or a key, with its path."""
    for path, schema in schemas(root):
        for keyword in ("const", "enum"):
            if keyword in schema:
                yield from _texts(f"{path}.{keyword}", schema[keyword])
        named = schema.get("properties")
        if isinstance(named, dict):
            yield from ((f"{path}.properties", name) for name in named)
        required = schema.get("required")
        if isinstance(required, list):
            yield from ((f"{path}.required", name) for name in required if isinstance(name, str))


def _texts(path: str, value: Json) -> Iterator[tuple[str, str]]:
    left: list[tuple[str, Json]] = [(path, value)]
    while left:
        where, each = left.pop()
        if isinstance(each, str):
            yield where, each
        elif isinstance(each, list):
            left += [(f"{where}[{index}]", below) for index, below in enumerate(each)]
        elif isinstance(each, dict):
            left += [(f"{where}.{key}", below) for key, below in each.items()]
            yield from ((where, key) for key in each)


def _unwritable(character: str) -> bool:
    return (character < " " and character not in "\b\f\n\r\t") or character == "\x7f"

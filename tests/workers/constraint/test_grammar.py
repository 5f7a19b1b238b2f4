"""Constraints as grammar text, and what is refused before anything is compiled."""

import json

import pytest

from pomona.workers.constraint.grammar import WIDEST_GAP, grammar_of
from pomona.workers.constraint.schema import Json, schemas
from pomona.workers.messages import Constraint
from tests.workers.constraint.lexicons import accepts


def of_schema(schema: Json) -> str:
    return grammar_of(Constraint("json_schema", json.dumps(schema)))


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", "{", "the schema is no JSON"),
        ("json_schema", "[" * 100_000, "the schema is no JSON"),
        ("json_schema", "[]", "must be a JSON object"),
        ("json_schema", "3", "must be a JSON object"),
        ("choice", "yes", "the choice is no JSON"),
        ("choice", "[]", "one or more strings"),
        ("choice", '["a", 1]', "one or more strings"),
        ("choice", '{"a": 1}', "one or more strings"),
    ],
)
def test_what_is_no_schema_and_no_choice_is_refused(kind: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        grammar_of(Constraint(kind, text))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"const": "a\x01"}, "$.const"),
        ({"const": {"k": ["\x7f"]}}, "$.const.k[0]"),
        ({"const": {"k\x00": 1}}, "$.const"),
        ({"anyOf": [{"type": "null"}, {"enum": ["a", "b\x1f"]}]}, "$.anyOf[1].enum[1]"),
        ({"properties": {"x": {"const": "\x02"}}}, "$.properties.x.const"),
        ({"properties": {"x\x02": {}}}, "$.properties"),
        ({"$defs": {"d": {"items": {"required": ["\x03"]}}}}, "$.$defs.d.items.required"),
    ],
)
def test_a_text_that_only_an_escape_could_write_is_refused_with_its_path(schema: Json, path: str) -> None:
    with pytest.raises(ValueError, match="control character") as failure:
        of_schema(schema)
    assert str(failure.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"const": {"default": "\x01"}, "enum": {"examples": ["\x02"]}}},
        {"description": "a \x01", "title": "\x02", "default": {"const": "\x03"}},
        {"const": "tab\tline\nquote\"back\\\b\f\r"},
        {"enum": ["é", "🍎", "\u2028"]},
    ],
)  # fmt: skip
def test_what_is_no_fixed_text_or_has_a_short_escape_is_not(schema: Json) -> None:
    of_schema(schema)


def test_a_schema_cannot_change_how_json_is_written() -> None:
    schema = {"type": "integer", "x-guidance": {"whitespace_flexible": False, "lenient": True, "coerce_one_of": True}}
    options = json.loads(of_schema(schema))["grammars"][0]["json_schema"]["x-guidance"]
    assert options == json.loads(of_schema({"type": "integer"}))["grammars"][0]["json_schema"]["x-guidance"]
    lenient = {"type": "object", "properties": {"a": {"type": "integer", "x-guidance": {"lenient": True}}}}
    assert not accepts(Constraint("json_schema", json.dumps(lenient)), '{"a":' + " " * (WIDEST_GAP + 1) + "1}")


def test_true_allows_anything_and_false_nothing() -> None:
    assert json.loads(of_schema(True)) == json.loads(of_schema({}))
    assert "not" in json.loads(of_schema(False))["grammars"][0]["json_schema"]


def test_schemas_are_found_where_they_are_and_nowhere_else() -> None:
    root: dict[str, Json] = {
        "properties": {"items": {"title": "1"}, "const": {"title": "2", "not": {"title": "3"}}},
        "items": [{"title": "4"}],
        "additionalProperties": {"title": "5"},
        "const": {"title": "no", "properties": {"x": {"title": "no"}}},
        "enum": [{"title": "no"}],
        "default": {"items": {"title": "no"}},
        "$defs": {"enum": {"title": "6", "anyOf": [True, {"title": "7"}]}},
        "dependentSchemas": {"a": {"title": "8"}},
        "then": {"title": "9"},
    }
    found = {str(schema.get("title", "")): path for path, schema in schemas(root)}
    assert found == {
        "": "$",
        "1": "$.properties.items",
        "2": "$.properties.const",
        "3": "$.properties.const.not",
        "4": "$.items[0]",
        "5": "$.additionalProperties",
        "6": "$.$defs.enum",
        "7": "$.$defs.enum.anyOf[1]",
        "8": "$.dependentSchemas.a",
        "9": "$.then",
    }

"""Structural tags: what their grammars accept and refuse, and what is refused beforehand."""

import json
from typing import Any

import pytest

from pomona.gateway.constraint_fields import ConstraintFields, Form, constraint_of
from pomona.gateway.errors import ApiError
from tests.workers.constraint.lexicons import accepts

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
STRUCTURES = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=weather>", "schema": CITY, "end": "</function>"},
        {"begin": "<function=time>", "schema": {"type": "object", "maxProperties": 0}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}


def tags(format: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": format}


def triggered(**more: Any) -> dict[str, Any]:
    tag = {"begin": "<n>", "content": NUMBER, "end": "</n>"}
    return tags({"type": "triggered_tags", "triggers": ["<n"], "tags": [tag], **more})


def separated(**more: Any) -> dict[str, Any]:
    listed = [{"begin": "<a>", "content": NUMBER, "end": "</a>"}, {"begin": "<b>", "content": NUMBER, "end": "</b>"}]
    return tags({"type": "tags_with_separator", "tags": listed, "separator": ",", **more})


YES = {"type": "const_string", "value": "yes"}
THINKS = tags(
    {
        "type": "sequence",
        "elements": [
            {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
            {
                "type": "or",
                "elements": [{"type": "const_string", "value": "yes"}, {"type": "regex", "pattern": "n/o+"}],
            },
        ],
    }
)
GRAMMAR = tags({"type": "grammar", "grammar": 'root ::= "a" root | "b"'})
OPEN_END = tags({"type": "sequence", "elements": [{"type": "const_string", "value": "So: "}, {"type": "any_text"}]})


@pytest.mark.parametrize(
    ("asked", "valid", "wrong"),
    [
        (
            STRUCTURES,
            [
                "Just text.",
                "",
                'Let me see. <function=weather>{"city": "Rome"}</function> and <function=time>{}</function>!',
                "a < b, <func and <b>",
            ],
            [
                "<function=news>{}</function>",
                '<function=weather>{"city": "Oslo"}</function>',
                "<function=time>{}</function",
                "text <function=",
            ],
        ),
        (triggered(), ["", "x<n>1</n><n>2</n>y"], ["<n>a</n>", "<nx"]),
        (triggered(at_least_one=True), ["x<n>1</n>y"], ["", "text"]),
        (triggered(stop_after_first=True), ["x<n>1</n>", "text"], ["<n>1</n>x"]),
        (triggered(stop_after_first=True, at_least_one=True), ["x<n>1</n>"], ["text", "<n>1</n><n>1</n>"]),
        (separated(), ["", "<a>1</a>", "<a>1</a>,<b>2</b>"], ["<a>1</a>,", "<a>1</a><b>2</b>", "x"]),
        (separated(at_least_one=True, stop_after_first=True), ["<b>1</b>"], ["", "<a>1</a>,<b>2</b>"]),
        (THINKS, ["<think>a</thin b</think>yes", "<think></think>n/oo"], ["yes", "<think>a", "<think></think>no"]),
        (GRAMMAR, ["b", "aab"], ["a", "ba"]),
        (OPEN_END, ["So: ", "So: it is <n>"], ["So:", "It is"]),
    ],
)
def test_what_the_grammars_take(asked: dict[str, Any], valid: list[str], wrong: list[str]) -> None:
    found = constraint_of(ConstraintFields(), Form(asked, "response_format"))
    assert found is not None
    assert [text for text in valid if not accepts(found.constraint, text)] == []
    assert [text for text in wrong if accepts(found.constraint, text)] == []


def test_as_text_and_as_object_it_is_the_same() -> None:
    for value in (STRUCTURES, json.dumps(STRUCTURES)):
        found = constraint_of(ConstraintFields(structured_outputs={"structural_tag": value}))
        assert found is not None
        assert accepts(found.constraint, "<function=time>{}</function>")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (tags("x"), "f.format"),
        (tags({"type": "qwen_xml_parameter"}), "f.format.type"),
        (tags({"type": "const_string"}), "f.format.value"),
        (tags({"type": "sequence", "elements": []}), "f.format.elements"),
        (tags({"type": "sequence", "elements": [{"type": "any_text"}, NUMBER]}), "f.format.elements[0]"),
        (tags({"type": "json_schema", "json_schema": {"not": {}}}), "f.format.json_schema"),
        (tags({"type": "json_schema", "json_schema": 3}), "f.format.json_schema"),
        (tags({"type": "json_schema", "json_schema": {}, "style": "xml"}), "f.format.style"),
        (tags({"type": "grammar", "grammar": 'top ::= "a"'}), "f.format.grammar"),
        (tags({"type": "grammar", "grammar": "start: <[5]>"}), "f.format.grammar"),
        (triggered(triggers=["<m"]), "f.format.tags[0].begin"),
        (triggered(triggers=[]), "f.format.triggers"),
        ({"type": "structural_tag", "structures": []}, "f.structures"),
        (
            {"type": "structural_tag", "structures": [{"begin": "<a>", "schema": 1}], "triggers": ["<a"]},
            "f.tags[0].content.json_schema",
        ),
    ],
)
def test_what_is_none_is_refused_with_its_place(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        constraint_of(ConstraintFields(), Form(asked, "f"))
    assert refused.value.status == 400
    assert refused.value.param == param


def test_nesting_and_size_are_bounded() -> None:
    deep: Any = NUMBER
    for _ in range(40):
        deep = {"type": "or", "elements": [deep]}
    wide = {"type": "or", "elements": [NUMBER] * 2000}
    for format in (deep, wide):
        with pytest.raises(ApiError, match="more than"):
            constraint_of(ConstraintFields(), Form(tags(format), "f"))

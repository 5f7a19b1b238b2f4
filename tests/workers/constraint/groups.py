"""Constraints, each with texts that an answer may be and texts that it may not."""

import json
from typing import Any, NamedTuple

from pomona.workers.messages import Constraint


class Group(NamedTuple):
    constraint: Constraint
    valid: tuple[str, ...]
    invalid: tuple[str, ...]


def _json(schema: object, valid: tuple[Any, ...], invalid: tuple[Any, ...]) -> Group:
    """Texts as they are; whatever is no text is written as JSON."""
    return Group(Constraint("json_schema", json.dumps(schema)), _texts(valid), _texts(invalid))


def _texts(values: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)


def _object(properties: dict[str, object], *, required: tuple[str, ...] = (), closed: bool = True) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        **({"additionalProperties": False} if closed else {}),
    }


INTEGER, STRING, BOOLEAN = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
PERSON = _object({"name": STRING, "age": INTEGER}, required=("name", "age"))
TREE = {"$ref": "#/$defs/node", "$defs": {"node": _object({"value": INTEGER, "next": {"$ref": "#/$defs/node"}})}}

GROUPS: dict[str, Group] = {
    # values
    "integer": _json(INTEGER, (0, 7, -12, 1234567890), (1.5, "01", "1.", "+1", "1e3", '"1"', "", "-")),
    "number": _json({"type": "number"}, (0, -1, 2.25, "1e5", "-3.5E-2"), (".5", "1.", "NaN", "Infinity", "0x1", "--1")),
    "integer between": _json(
        {"type": "integer", "minimum": 3, "maximum": 25}, (3, 9, 10, 25), (2, 26, 30, 100, -3, "03", "")
    ),
    "exclusive bounds": _json(
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10}, (1, 9), (0, 10, -1, 11)
    ),
    "number between": _json({"type": "number", "minimum": 0, "maximum": 1}, (0, 1, 0.5, "0.001"), (-0.1, 1.5, 2)),
    "boolean": _json(BOOLEAN, (True, False), ("True", "TRUE", 0, "null", '"true"', "tru")),
    "null": _json({"type": "null"}, (None,), ("None", "nil", "", 0, "nul")),
    "string": _json(
        STRING,
        ('""', '"a"', '"é 果 🍎"', r'"a\"b"', r'"\\"', r'"\n\t"', '"true"'),
        ('"', '"a', 'a"', "'a'", '"a\nb"', r'"\x41"', r'"\""x', '"a""b"'),
    ),
    "string of a length": _json(
        {"type": "string", "minLength": 2, "maxLength": 4},
        ('"ab"', '"abcd"', '"éé"', '"🍎🍐"'),
        ('"a"', '"abcde"', '""', '"é"', '"🍎🍐🍎🍐🍎"'),
    ),
    "string of a pattern": _json(
        {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"}, ('"ABC-1"', '"XYZ-007"'), ('"AB-1"', '"ABC-"', '"abc-1"')
    ),
    "date": _json(
        {"type": "string", "format": "date"}, ('"2026-12-01"', '"2000-02-29"'), ('"2026-13-01"', '"26-1-1"', '"today"')
    ),
    "uuid": _json(
        {"type": "string", "format": "uuid"},
        ('"01234567-89ab-cdef-0123-456789abcdef"',),
        ('"0123456789abcdef"', '"g1234567-89ab-cdef-0123-456789abcdef"', '""'),
    ),
    "const": _json({"const": "fixed"}, ('"fixed"',), ('"Fixed"', '"fixed "', "fixed", '""')),
    "const number": _json({"const": 42}, (42,), (4, 43, 420, '"42"')),
    "enum": _json({"enum": ["red", "green", "red hot"]}, ('"red"', '"red hot"'), ('"blue"', '"re"', '"red ho"', "red")),
    "enum of all kinds": _json({"enum": [1, "1", None, True]}, (1, '"1"', None, True), (0, '"true"', False, '"null"')),
    "enum of blanks and quotes": _json(
        {"enum": ["a b", 'say "hi"', "back\\slash", ""]},
        ('"a b"', r'"say \"hi\""', r'"back\\slash"', '""'),
        ('"a  b"', '"say "hi""', r'"back\slash"', '" "'),
    ),
    "several types": _json({"type": ["integer", "null"]}, (1, None), (1.5, '"1"', True, "nul")),
    # objects
    "closed object": _json(
        PERSON,
        ({"name": "Ann", "age": 3}, '{ "name" : "" ,\n"age" : 0 }'),
        (
            {"name": "Ann"},
            {"age": 3, "name": "Ann"},
            {"name": "Ann", "age": 3, "x": 1},
            '{"name":"Ann","age":3,}',
            "{}",
        ),
    ),
    "optional properties": _json(
        _object({"a": INTEGER, "b": INTEGER, "c": INTEGER}, required=("b",)),
        ({"b": 1}, {"a": 1, "b": 2}, {"b": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}),
        ({}, {"a": 1}, {"c": 1, "b": 2}, {"a": 1, "b": 2, "b ": 3}),
    ),
    "open object": _json(
        _object({"a": INTEGER}, required=("a",), closed=False),
        ({"a": 1}, {"a": 1, "b": [1, {"c": None}]}, {"a": 1, "b": "x", "c": True}),
        ({"b": 1}, {"a": "x"}, '{"a":1,"b":}', '{"a":1,"a":"again"}', r'{"a":1,"\u0061":"again"}'),
    ),
    "typed further properties": _json(
        {"type": "object", "additionalProperties": INTEGER}, ({}, {"x": 1, "y": 2}), ({"x": "1"}, {"x": 1, "y": None})
    ),
    "pattern properties": _json(
        {"type": "object", "patternProperties": {"^n_": INTEGER}, "additionalProperties": False},
        ({}, {"n_a": 1, "n_b": 2}),
        ({"a": 1}, {"n_a": "x"}),
    ),
    "properties called like keywords": _json(
        _object({"const": STRING, "enum": INTEGER, "type": BOOLEAN, "$ref": INTEGER}, required=("const", "type")),
        ({"const": "x", "type": True}, {"const": "x", "enum": 1, "type": False, "$ref": 2}),
        ({"const": 1, "type": True}, {"type": True}),
    ),
    "property names with quotes and blanks": _json(
        _object({'a "b"': INTEGER, "c d": INTEGER, "é\\": INTEGER}, required=('a "b"', "c d")),
        ({'a "b"': 1, "c d": 2}, {'a "b"': 1, "c d": 2, "é\\": 3}),
        ('{"a b":1,"c d":2}', {"c d": 2}),
    ),
    "any object": Group(
        Constraint("json_object"),
        ("{}", '{"a":[1,2,{"b":null}]}', '{"a":{"a":{"a":"x"}}}', '{ "é": -1.5e3 }'),
        ("[]", "1", '"a"', "{a:1}", "{'a':1}", '{"a":1}}', '{"a":1,}', '{"a"}', "{", "```json\n{}"),
    ),
    "anything": _json(True, (1, "[]", {"a": 1}, '"x"', None), ("", "x", "[1,]", "{,}")),
    # arrays
    "array": _json({"type": "array", "items": INTEGER}, ([], [1], [1, 2, 3]), ("[1,]", "[,1]", ["x"], "[1 2]", "[1")),
    "array of a length": _json(
        {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 3}, ([1, 2], [1, 2, 3]), ([], [1], [1, 2, 3, 4])
    ),
    "tuple": _json(
        {"type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2},
        ([1, "a"],),
        ([1], ["a", 1], [1, "a", 2], []),
    ),
    "array of objects": _json(
        {"type": "array", "items": PERSON, "minItems": 1},
        ([{"name": "A", "age": 1}], [{"name": "A", "age": 1}, {"name": "B", "age": 2}]),
        ([], [{"name": "A"}], {"name": "A", "age": 1}),
    ),
    "nested arrays": _json(
        {"type": "array", "items": {"type": "array", "items": BOOLEAN}},
        ([], [[]], [[True], [False, True]]),
        ([True], [[1]]),
    ),
    # combinations
    "any of": _json({"anyOf": [INTEGER, {"type": "array", "items": INTEGER}]}, (1, [1, 2]), ('"1"', [["1"]], {})),
    "all of": _json(
        {
            "allOf": [
                _object({"a": INTEGER}, required=("a",), closed=False),
                _object({"b": STRING}, required=("b",), closed=False),
            ]
        },
        ({"a": 1, "b": "x"},),
        ({"a": 1}, {"b": "x"}),
    ),
    "one of kinds that exclude each other": _json({"oneOf": [STRING, INTEGER]}, ('"a"', 1), (1.5, None, [])),
    "nullable object": _json({"anyOf": [PERSON, {"type": "null"}]}, (None, {"name": "A", "age": 1}), ({}, "nul")),
    "reference": _json(
        {"$ref": "#/$defs/p", "$defs": {"p": PERSON}}, ({"name": "A", "age": 1},), ({"name": "A"}, {}, None)
    ),
    "recursion": _json(
        TREE,
        ({}, {"value": 1}, {"value": 1, "next": {"value": 2, "next": {}}}),
        ({"next": 1}, {"value": 1, "next": None}),
    ),
    "shape by a tag": _json(
        {
            "anyOf": [
                _object({"kind": {"const": "circle"}, "radius": INTEGER}, required=("kind", "radius")),
                _object({"kind": {"const": "square"}, "side": INTEGER}, required=("kind", "side")),
            ]
        },
        ({"kind": "circle", "radius": 1}, {"kind": "square", "side": 2}),
        ({"kind": "circle", "side": 1}, {"kind": "cube", "side": 1}),
    ),
    "blank space is bounded": _json(
        _object({"a": INTEGER}, required=("a",)),
        ('{"a":1}', '{\n  "a": 1\n}', '{"a":' + " " * 32 + "1}"),
        ('{"a":' + " " * 33 + "1}", '{\u00a0"a":1}', '{"a":1 \f}'),
    ),
    "markers of other formats are text": _json(
        {"enum": ["</think><|im_end|><tool_call>```"]},
        ('"</think><|im_end|><tool_call>```"',),
        ('"</think>"', "</think>", '"<|im_end|>"'),
    ),
    # other languages
    "regex": Group(Constraint("regex", "[a-c]+[0-9]{2}"), ("a12", "abc00"), ("12", "a1", "a123", "d12", " a12", "")),
    "regex of alternatives": Group(
        Constraint("regex", "(yes|no)(, (yes|no))*"), ("yes", "no, yes, no"), ("yes,no", "")
    ),
    "regex of any text": Group(Constraint("regex", "(?s:.{3})"), ("abc", "a\nb", "é果🍎"), ("ab", "abcd")),
    "regex of letters of all scripts": Group(Constraint("regex", r"\p{L}+"), ("abc", "été", "果園"), ("a1", "", "a b")),
    "choice": Group(
        Constraint("choice", json.dumps(["yes", "yes, sir", "no"])), ("yes", "yes, sir", "no"), ("y", "yes,", "")
    ),
    "choice of odd texts": Group(
        Constraint("choice", json.dumps(['a"b', "a\\b", "a\nb", "é🍎", "[0-9]", "\x7f"])),
        ('a"b', "a\\b", "a\nb", "é🍎", "[0-9]", "\x7f"),
        ("a", "ab", "é", "0", "a\\nb"),
    ),
    "lark": Group(
        Constraint("lark", 'start: item ("," item)*\nitem: /[a-z]+/ "=" NUMBER\nNUMBER: /[0-9]+/'),
        ("a=1", "a=1,bc=22"),
        ("a", "a=", "a=1,", "=1", "A=1"),
    ),
    "lark that recurs": Group(
        Constraint("lark", 'start: expr\nexpr: term ("+" term)*\nterm: NUMBER | "(" expr ")"\nNUMBER: /[0-9]+/'),
        ("1", "1+2", "(1+(2+3))+4"),
        ("(1", "1+", "()", "1)", "+1"),
    ),
    "lark with json in it": Group(
        Constraint("lark", 'start: "call " call\ncall: %json ' + json.dumps(_object({"x": INTEGER}, required=("x",)))),
        ('call {"x":1}', 'call {"x": 22}'),
        ('{"x":1}', 'call {"x":"1"}', "call {}", 'call {"x":1} '),
    ),
}

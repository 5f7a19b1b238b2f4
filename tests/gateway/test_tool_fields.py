"""What clients say of tools, on three APIs and in an older way, and what is refused."""

from typing import Any

import pytest

from pomona.gateway.errors import ApiError
from pomona.gateway.tool_fields import AskedTools, chat_functions, chat_tools, message_tools, response_tools

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
STRICT = SCHEMA | {"additionalProperties": False}


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "does", "parameters": SCHEMA, **fields}}


def flat(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": "does", "parameters": SCHEMA, **fields}


def block(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": "does", "input_schema": SCHEMA, **fields}


def chat(choice: Any = None, *, parallel: bool | None = None) -> AskedTools:
    return chat_tools([function("f"), function("g")], choice, parallel)


def test_all_apis_say_the_same() -> None:
    asked = (
        chat(),
        chat_functions([function("f")["function"], function("g")["function"]], None),
        response_tools([flat("f"), flat("g")], None, None),
        message_tools([block("f"), block("g", type="custom")], None),
    )
    for each in asked:
        assert [tool.rendered() for tool in each.tools] == [function("f"), function("g")]
        assert each.allowed == each.tools
        assert not each.required
    assert [each.parallel for each in asked] == [True, False, True, True]
    assert [each.tools[1].param for each in asked] == [
        "tools[1].function.parameters",
        "functions[1].parameters",
        "tools[1].parameters",
        "tools[1].input_schema",
    ]


@pytest.mark.parametrize(
    ("choice", "required", "names", "parallel"),
    [
        ("auto", False, "fg", True),
        ({"type": "auto"}, False, "fg", True),
        ("required", True, "fg", True),
        ("any", True, "fg", True),
        ({"type": "any"}, True, "fg", True),
        ({"type": "function", "function": {"name": "g"}}, True, "g", False),
        ({"type": "function", "name": "g"}, True, "g", False),
        ({"type": "tool", "name": "f"}, True, "f", False),
        ({"name": "f"}, True, "f", False),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}, False, "g", True),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("g")]}}, True, "g", True),
    ],
)
def test_choices(choice: Any, required: bool, names: str, parallel: bool) -> None:
    asked = chat(choice)
    assert [tool.name for tool in asked.tools] == ["f", "g"]
    assert [tool.name for tool in asked.allowed] == list(names)
    assert (asked.required, asked.parallel) == (required, parallel)


@pytest.mark.parametrize("choice", ["none", {"type": "none"}])
def test_none_offers_none(choice: Any) -> None:
    assert chat(choice) == AskedTools()
    assert message_tools([block("f")], {"type": "none"}) == AskedTools()


def test_parallel_calls_are_switched_off() -> None:
    assert not chat(parallel=False).parallel
    assert not message_tools([block("f")], {"type": "auto", "disable_parallel_tool_use": True}).parallel
    assert message_tools([block("f")], {"type": "tool", "name": "f"}).parallel


def test_other_kinds_are_left_out_and_named() -> None:
    tools = [flat("f"), {"type": "web_search"}, {"type": "custom", "name": "c"}]
    asked = response_tools(tools, None, None)
    assert [tool.name for tool in asked.tools] == ["f"]
    assert asked.left_out == ("custom", "web_search")
    assert message_tools([{"type": "bash_20250124", "name": "bash"}], None).left_out == ("bash_20250124",)
    assert chat_tools([{"type": "custom", "custom": {"name": "c"}}], None, None).left_out == ("custom",)


def test_strict_follows_each_apis_own_rules() -> None:
    with pytest.raises(ApiError, match=r"tools\[0\]\.function\.parameters: strict wants"):
        chat_tools([function("f", strict=True)], None, None)
    assert chat_tools([function("f", strict=True, parameters=STRICT)], None, None).tools[0].strict
    assert message_tools([block("f", strict=True)], None).tools[0].strict


@pytest.mark.parametrize(
    ("tools", "choice", "param", "says"),
    [
        ([7], None, "tools[0]", "object"),
        ([{"type": "function"}], None, "tools[0].function", "object"),
        ([function("a b")], None, "tools[0].function.name", "a b"),
        ([function("")], None, "tools[0].function.name", "letters"),
        ([function("f\n")], None, "tools[0].function.name", "letters"),
        ([function("f" * 65)], None, "tools[0].function.name", "64"),
        ([function("f"), function("f")], None, "tools[1]", "'f'"),
        ([function("f", description=7)], None, "tools[0].function.description", "string"),
        ([function("f", strict="yes")], None, "tools[0].function.strict", "true or false"),
        ([function("f", parameters=7)], None, "tools[0].function.parameters", "JSON Schema"),
        ([function("f", parameters={"type": "string"})], None, "tools[0].function.parameters", "object"),
        ([function("f", parameters={"properties": [1]})], None, "tools[0].function.parameters.properties", "schemas"),
        ([function("f", parameters={"properties": {"a": 1}})], None, "tools[0].function.parameters.properties", "sche"),
        ([function("f", parameters={"required": "a"})], None, "tools[0].function.parameters.required", "list"),
        ([function("f")], "sometimes", "tool_choice", "sometimes"),
        ([function("f")], 7, "tool_choice", "7"),
        ([function("f")], {"type": "function", "function": {"name": "g"}}, "tool_choice", "'g'"),
        ([function("f")], {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}]}, "tool_choice", "'g'"),
        ([function("f")], {"type": "allowed_tools", "mode": "required", "tools": []}, "tool_choice", "no tool"),
        ([], "required", "tool_choice", "no tool"),
        (None, {"type": "any"}, "tool_choice", "no tool"),
        ([{"type": "custom", "custom": {"name": "c"}}], "required", "tool_choice", "no tool"),
        ([function(f"f{index}") for index in range(1025)], None, "tools", "1024"),
    ],
)
def test_what_is_wrong_is_named(tools: Any, choice: Any, param: str, says: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat_tools(tools, choice, None)
    assert refused.value.status == 400
    assert refused.value.param == param
    assert says in refused.value.message


def test_anthropics_names_may_be_longer() -> None:
    assert message_tools([block("f" * 128)], None).tools
    with pytest.raises(ApiError, match="128"):
        message_tools([block("f" * 129)], None)

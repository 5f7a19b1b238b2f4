"""The tools that a client offers, from the fields of all APIs. Pure."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pomona.gateway.body import JsonObject, JsonValue
from pomona.gateway.constraint_schema import check_strict
from pomona.gateway.errors import invalid

MOST_TOOLS = 1024
_NAMES = {64: re.compile(r"[A-Za-z0-9_-]{1,64}"), 128: re.compile(r"[A-Za-z0-9_-]{1,128}")}
_NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}


class Tool(NamedTuple):
    name: str
    description: str
    parameters: JsonObject
    """The schema of its arguments, an object."""
    strict: bool
    """Every call must fit the schema."""
    param: str
    """Where the client gave the schema."""

    def rendered(self) -> JsonObject:
        """As chat templates know tools."""
        function: JsonObject = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class AskedTools(NamedTuple):
    tools: tuple[Tool, ...] = ()
    allowed: tuple[Tool, ...] = ()
    """Those that may be called."""
    required: bool = False
    """One of them must be."""
    parallel: bool = True
    left_out: tuple[str, ...] = ()
    """Kinds of tools that are not offered to the model."""


class _Choice(NamedTuple):
    mode: str
    names: tuple[JsonValue, ...] | None = None
    """None: all."""
    one: bool = False
    """Exactly one call."""


def chat_tools(tools: Sequence[JsonValue] | None, choice: JsonValue, parallel: bool | None) -> AskedTools:
    """Of Chat Completions. Raises ApiError 400."""
    return _asked(tools, choice, parallel is not False, _chat_tool)


def chat_functions(functions: Sequence[JsonValue] | None, call: JsonValue) -> AskedTools:
    """Of Chat Completions before there were tools: one call an answer. Raises ApiError 400."""

    def function(value: JsonObject, where: str) -> Tool:
        return _tool(value, "parameters", where)

    return _asked(functions, call, False, function, "functions", "function_call")


def response_tools(tools: Sequence[JsonValue] | None, choice: JsonValue, parallel: bool | None) -> AskedTools:
    """Of Responses. Raises ApiError 400."""

    def function(value: JsonObject, where: str) -> Tool | str:
        return _tool(value, "parameters", where) if value.get("type") == "function" else str(value.get("type"))

    return _asked(tools, choice, parallel is not False, function)


def message_tools(tools: Sequence[JsonValue] | None, choice: JsonValue) -> AskedTools:
    """Of Anthropic Messages. Raises ApiError 400."""

    def custom(value: JsonObject, where: str) -> Tool | str:
        kind = value.get("type")
        if kind not in (None, "custom"):
            return str(kind)
        return _tool(value, "input_schema", where, longest=128, openai=False)

    single = isinstance(choice, dict) and bool(choice.get("disable_parallel_tool_use"))
    return _asked(tools, choice, not single, custom, one_if_named=False)


def _chat_tool(value: JsonObject, where: str) -> Tool | str:
    kind = value.get("type", "function")
    if kind != "function":
        return str(kind)
    function = value.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{where}.function must be an object with a name", f"{where}.function")
    return _tool(function, "parameters", f"{where}.function")


def _tool(value: JsonObject, schema: str, where: str, *, longest: int = 64, openai: bool = True) -> Tool:
    name, description = value.get("name"), value.get("description")
    if not isinstance(name, str) or not _NAMES[longest].fullmatch(name):
        raise invalid(
            f"{where}.name must be 1 to {longest} letters, digits, underscores and dashes; got {str(name)[:80]!r}",
            f"{where}.name",
        )
    if not isinstance(description, str | None):
        raise invalid(f"{where}.description must be a string", f"{where}.description")
    strict = value.get("strict")
    if strict not in (None, True, False):
        raise invalid(f"{where}.strict must be true or false", f"{where}.strict")
    param = f"{where}.{schema}"
    parameters = _parameters(value.get(schema), param)
    if strict and openai:
        check_strict(parameters, param)
    return Tool(name, description or "", parameters, bool(strict), param)


def _parameters(value: JsonValue, param: str) -> JsonObject:
    if value is None:
        return _NO_ARGUMENTS
    if not isinstance(value, dict) or value.get("type", "object") != "object":
        raise invalid(f'{param} must be a JSON Schema of an object: {{"type": "object", "properties": …}}', param)
    named, required = value.get("properties", {}), value.get("required", [])
    if not isinstance(named, dict) or not all(isinstance(each, dict | bool) for each in named.values()):
        raise invalid(f"{param}.properties must be an object of schemas", f"{param}.properties")
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise invalid(f"{param}.required must be a list of names", f"{param}.required")
    return value or _NO_ARGUMENTS


def _asked(
    given: Sequence[JsonValue] | None,
    choice: JsonValue,
    parallel: bool,
    read: Callable[[JsonObject, str], Tool | str],
    field: str = "tools",
    param: str = "tool_choice",
    *,
    one_if_named: bool = True,
) -> AskedTools:
    if len(given or ()) > MOST_TOOLS:
        raise invalid(f"{field}: {len(given or ())} are more than the {MOST_TOOLS} that can be offered", field)
    tools: dict[str, Tool] = {}
    kinds: set[str] = set()
    for index, value in enumerate(given or ()):
        where = f"{field}[{index}]"
        if not isinstance(value, dict):
            raise invalid(f"{where} must be an object", where)
        tool = read(value, where)
        if isinstance(tool, str):
            kinds.add(tool)
        elif tool.name in tools:
            raise invalid(f"{where}: there is another tool with the name {tool.name!r}; rename one", where)
        else:
            tools[tool.name] = tool
    chosen = _choice(choice, param)
    for name in chosen.names or ():
        if name not in tools:
            known = ", ".join(tools) or "none"
            raise invalid(f"{param} names {str(name)[:80]!r}, which is no tool that can be offered ({known})", param)
    allowed = tuple(tool for tool in tools.values() if chosen.names is None or tool.name in chosen.names)
    required = chosen.mode == "required"
    if required and not allowed:
        raise invalid(f"{param} asks for a call, and there is no tool that could be called", param)
    left_out = tuple(sorted(kinds))
    if chosen.mode == "none" or not allowed:
        return AskedTools(left_out=left_out)
    single = chosen.one and one_if_named
    return AskedTools(tuple(tools.values()), allowed, required, parallel and not single, left_out)


def _choice(value: JsonValue, param: str) -> _Choice:
    """The spellings of all APIs are told apart by their shape, so each route takes them all."""
    match value:
        case None | "auto" | {"type": "auto"}:
            return _Choice("auto")
        case "none" | {"type": "none"}:
            return _Choice("none")
        case "required" | "any" | {"type": "required" | "any"}:
            return _Choice("required")
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(named)}} | {
            "type": "allowed_tools",
            "mode": "auto" | "required" as mode,
            "tools": list(named),
        }:
            return _Choice(mode, tuple(map(_name, named)))
        case {"type": "function", "function": {"name": name}} | {"type": "function" | "tool", "name": name}:
            return _Choice("required", (name,), one=True)
        case {"name": name, **rest} if "type" not in rest:
            return _Choice("required", (name,), one=True)
        case _:
            raise invalid(
                f"{param} must be none, auto, required, or an object that names tools; got {str(value)[:80]}", param
            )


def _name(value: JsonValue) -> JsonValue:
    match value:
        case {"function": {"name": name}} | {"name": name}:
            return name
        case _:
            return value

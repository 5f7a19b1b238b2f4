"""Messages of any API as the turns that chat templates know: role, text, tool calls."""

from collections.abc import Sequence

from pomona.gateway.body import BodyError, JsonObject, JsonValue, parse_json
from pomona.gateway.errors import invalid

TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def role_of(role: JsonValue, where: str) -> str:
    """`developer` means system, `function` means tool. Raises ApiError."""
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}: unknown role {role!r}; there are {', '.join(ROLES)}", where)
    return ROLES[role]


def text_of(content: JsonValue, where: str) -> str:
    """The text of a string or of a list of text parts, one part a line; null is empty. Raises ApiError."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{where} must be a string or a list of parts", where)
    return "\n".join(part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def part_text(part: JsonValue, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise invalid(f"{where} must be an object with a type", where)
    kind = part["type"]
    if kind not in TEXT_PARTS:
        raise invalid(f"{where}: content of type {kind!r} is not supported; the models here read text", where)
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise invalid(f"{where}.text must be a string", f"{where}.text")
    return text


def chat_turn(message: JsonObject, where: str) -> JsonObject:
    """A Chat Completions message as a turn; keys that templates may know are kept. Raises ApiError."""
    turn: JsonObject = {key: value for key, value in message.items() if value is not None}
    turn["role"] = role_of(message.get("role"), f"{where}.role")
    turn["content"] = text_of(message.get("content"), f"{where}.content")
    if "reasoning" in turn and "reasoning_content" not in turn:
        turn["reasoning_content"] = turn["reasoning"]
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise invalid(f"{where}.tool_calls must be a list", f"{where}.tool_calls")
        turn["tool_calls"] = [_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    elif message.get("function_call") is not None:
        function = turn.pop("function_call")
        turn["tool_calls"] = [_call({"id": None, "function": function}, f"{where}.function_call")]
    return turn


def tool_call(call_id: JsonValue, name: JsonValue, arguments: JsonValue) -> JsonObject:
    """Templates want the arguments as an object; text that is no JSON object stays text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": _arguments(arguments)}}


def _call(call: JsonValue, where: str) -> JsonObject:
    if not isinstance(call, dict):
        raise invalid(f"{where} must be an object", where)
    function = call.get("function", call.get("custom"))
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(f"{where}.function needs a name", f"{where}.function")
    return tool_call(call.get("id"), function["name"], function.get("arguments", function.get("input")))


def _arguments(arguments: JsonValue) -> JsonValue:
    if isinstance(arguments, str):
        try:
            value = parse_json(arguments.encode())
        except BodyError:
            return arguments
        return value if isinstance(value, dict) else arguments
    return arguments


def name_results(turns: Sequence[JsonObject]) -> list[JsonObject]:
    """Results of tools with the name of what was called, which some templates write; not all APIs send it."""
    names: dict[str, str] = {}
    named = []
    for turn in turns:
        calls = turn.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            match call:
                case {"id": str(id), "function": {"name": str(name)}}:
                    names[id] = name
        called = turn.get("tool_call_id")
        if turn["role"] == "tool" and "name" not in turn and isinstance(called, str) and called in names:
            turn = {**turn, "name": names[called]}
        named.append(turn)
    return named


def merge_systems(turns: Sequence[JsonObject]) -> list[JsonObject]:
    """The system turns at the head become one, since templates take at most one there."""
    count = next((index for index, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    if count < 2:
        return list(turns)
    text = "\n\n".join(str(turn["content"]) for turn in turns[:count] if turn["content"])
    head: JsonObject = {"role": "system", "content": text}
    return [head, *turns[count:]]

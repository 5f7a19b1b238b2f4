"""Input items of the Responses API as the turns that chat templates know."""

from pomona.gateway.body import JsonObject, JsonValue
from pomona.gateway.errors import invalid
from pomona.gateway.turns import role_of, text_of, tool_call

IGNORED = frozenset({"reasoning", "additional_tools", "compaction", "compaction_trigger"})
"""Items that say nothing to a model that reads no other model's thoughts and is offered functions only."""


def input_turns(given: JsonValue) -> list[JsonObject]:
    """Turns of a string or of a list of items. Raises ApiError, naming the item."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise invalid("input must be a string or a list of items", "input")
    turns: list[JsonObject] = []
    for index, item in enumerate(given):
        if not isinstance(item, dict):
            raise invalid(f"input[{index}] must be an object", f"input[{index}]")
        _add(turns, item, f"input[{index}]")
    return turns


def _add(turns: list[JsonObject], item: JsonObject, where: str) -> None:
    kind = item.get("type", "message")
    match kind:
        case "message":
            content = text_of(item.get("content"), f"{where}.content")
            turns.append({"role": role_of(item.get("role"), f"{where}.role"), "content": content})
        case "function_call":
            _add_call(turns, tool_call(item.get("call_id"), item.get("name"), item.get("arguments")))
        case "custom_tool_call":
            wrapped: JsonObject = {"input": item.get("input")}
            _add_call(turns, tool_call(item.get("call_id"), item.get("name"), wrapped))
        case "function_call_output" | "custom_tool_call_output":
            content = text_of(item.get("output"), f"{where}.output")
            turns.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        case str() if kind in IGNORED:
            pass
        case _:
            raise invalid(f"{where}: an item of type {kind!r} is not supported here", f"{where}.type")


def _add_call(turns: list[JsonObject], call: JsonObject) -> None:
    """Calls belong to the assistant's turn before them."""
    before = turns[-1] if turns else None
    if before is not None and before["role"] == "assistant":
        calls: JsonValue = before.get("tool_calls", [])
        assert isinstance(calls, list), "made below"
        turns[-1] = {**before, "tool_calls": [*calls, call]}
    else:
        turns.append({"role": "assistant", "content": "", "tool_calls": [call]})

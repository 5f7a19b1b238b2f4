"""Anthropic's messages and content blocks as the turns that chat templates know."""

from collections.abc import Sequence

from pomona.gateway.body import JsonObject, JsonValue
from pomona.gateway.errors import invalid
from pomona.gateway.turns import merge_systems, part_text, text_of, tool_call

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "ctx": "user", "msg": "user"}
"""`ctx` and `msg` are Claude Code's names for text that it adds itself."""

BILLING = "x-anthropic-billing-header:"
"""Starts a line of Claude Code's system prompt that changes with every request and would spoil each cached prefix."""


def conversation(system: JsonValue, messages: Sequence[JsonObject]) -> tuple[list[JsonObject], bool]:
    """The turns, and whether the last one is a prefill: an answer begun by the client. Raises ApiError."""
    turns: list[JsonObject] = []
    text = system_text(system, "system")
    if text:
        turns.append({"role": "system", "content": text})
    for index, message in enumerate(messages):
        for turn in _turns(message, f"messages[{index}]"):
            _append(turns, turn)
    turns = merge_systems(turns)
    last = turns[-1]
    return turns, last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last


def system_text(system: JsonValue, where: str) -> str:
    """A string or a list of text blocks, without billing lines. Raises ApiError."""
    if isinstance(system, list):
        texts = [without_billing(part_text(block, f"{where}[{index}]")) for index, block in enumerate(system)]
        return "\n".join(text for text in texts if text)
    return without_billing(text_of(system, where))


def without_billing(text: str) -> str:
    if text.startswith(BILLING):
        return text.partition("\n")[2]
    return text


def _append(turns: list[JsonObject], turn: JsonObject) -> None:
    """Consecutive turns of the user, and of the assistant, are one."""
    before = turns[-1] if turns else None
    if before is None or before["role"] != turn["role"] or turn["role"] not in ("user", "assistant"):
        turns.append(turn)
        return
    texts = [str(part["content"]) for part in (before, turn) if part["content"]]
    merged: JsonObject = {**before, **turn, "content": "\n".join(texts)}
    calls = [*_list(before.get("tool_calls")), *_list(turn.get("tool_calls"))]
    if calls:
        merged["tool_calls"] = calls
    turns[-1] = merged


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _turns(message: JsonObject, where: str) -> list[JsonObject]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}.role: unknown role {role!r}; there are user, assistant and system", f"{where}.role")
    role = ROLES[role]
    content = message.get("content")
    if role == "system":
        return [{"role": role, "content": system_text(content, f"{where}.content")}]
    if content is None:
        raise invalid(f"{where}.content is required", f"{where}.content")
    if not isinstance(content, list):
        return [{"role": role, "content": text_of(content, f"{where}.content")}]
    return _from_blocks(role, content, f"{where}.content")


def _from_blocks(role: str, blocks: Sequence[JsonValue], where: str) -> list[JsonObject]:
    """Tool results become turns of their own, before the text beside them."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[JsonValue] = []
    results: list[JsonObject] = []
    for index, block in enumerate(blocks):
        at = f"{where}[{index}]"
        if not isinstance(block, dict):
            raise invalid(f"{at} must be an object with a type", at)
        match block:
            case {"type": "tool_use", "id": str(id), "name": str(name)} if role == "assistant":
                calls.append(tool_call(id, name, block.get("input", {})))
            case {"type": "tool_result", "tool_use_id": str(id)} if role == "user":
                text = text_of(block.get("content"), f"{at}.content")
                results.append({"role": "tool", "tool_call_id": id, "content": text})
            case {"type": "thinking", "thinking": str(thought)} if role == "assistant":
                thoughts.append(thought)
            case {"type": "redacted_thinking"} if role == "assistant":
                pass  # nobody but its maker can read it
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                raise invalid(f"{at}: a content block of type {block.get('type')!r} is not supported here", at)
    turn: JsonObject = {"role": role, "content": "\n".join(texts)}
    if thoughts:
        turn["reasoning_content"] = "\n".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return [*results, turn] if texts or thoughts or calls or not results else list(results)

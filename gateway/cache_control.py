"""Anthropic's `cache_control`: taken wherever it may stand. What it asks for is kept anyway, so it changes no token."""

from collections.abc import Iterator, Sequence

from pomona.gateway.body import JsonObject, JsonValue
from pomona.gateway.errors import invalid

LIVES = ("5m", "1h")


def asks_to_cache(
    own: JsonValue, tools: Sequence[JsonValue] | None, system: JsonValue, messages: Sequence[JsonObject]
) -> bool:
    """True if a mark stands in the body itself (`own`), on a tool or on any content block.

    Raises ApiError for a mark of another shape than `{"type": "ephemeral", "ttl": "5m" or "1h"}`, naming its place.
    """
    marks = [(own, "cache_control"), *_marks(list(tools or ()), "tools"), *_marks(system, "system")]
    for index, message in enumerate(messages):
        marks += _marks(message.get("content"), f"messages[{index}].content")
    for mark, where in marks:
        _check(mark, where)
    return any(mark is not None for mark, _ in marks)


def _marks(blocks: JsonValue, where: str) -> Iterator[tuple[JsonValue, str]]:
    """The marks of a list of blocks, and of the blocks inside them, as a tool's result has; each with its place."""
    for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if isinstance(block, dict):
            at = f"{where}[{index}]"
            yield block.get("cache_control"), f"{at}.cache_control"
            yield from _marks(block.get("content"), f"{at}.content")


def _check(mark: JsonValue, where: str) -> None:
    """Unknown fields beside the two are let through, as everywhere on this route."""
    if mark is None:
        return
    if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
        raise invalid(f'{where} must be {{"type": "ephemeral"}}, with a ttl of "5m" or "1h" if any', where)
    ttl = mark.get("ttl")
    if ttl is not None and ttl not in LIVES:
        raise invalid(f'{where}.ttl must be "5m" or "1h"', f"{where}.ttl")

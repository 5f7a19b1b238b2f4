"""Names of members that spell a control token of a model; transformers looks after texts, but not after names."""

from collections.abc import Sequence
from typing import Any

from pomona.gateway.body import JsonValue


def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Those that a chat template may write; blanks and the like, which some tokenisers list beside them, are none."""
    added = tokenizer.added_tokens_decoder.values()
    return tuple(token.content for token in added if token.special or token.content.startswith(("<", "[")))


def name_like(value: JsonValue, tokens: Sequence[str]) -> str | None:
    """A key anywhere in `value` that holds one of `tokens`."""
    left: list[JsonValue] = [value]
    while left:
        match left.pop():
            case dict() as held:
                for name in map(str, held):
                    if any(token in name for token in tokens):
                        return name
                left += held.values()
            case list() as held:
                left += held
    return None

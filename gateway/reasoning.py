"""Whether and how long a model is to think, from the fields of all APIs; and where its template leaves it. Pure."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import Field

from pomona.gateway.body import AnyJson, JsonValue, RequestBody
from pomona.gateway.errors import invalid
from pomona.reasoning_formats import Marks, format_of, marks_of
from pomona.workers.messages import Reasoning

TAIL = 64
"""Tokens of a prompt's end that tell where it leaves the model."""

EFFORTS: Mapping[str, int] = {"minimal": 1024, "low": 2048, "medium": 8192}
"""Tokens of thought for a template that does not read the word; other words are no bound."""

MOST = 2**31 - 1

_TAG = re.compile(r"<think(:[A-Za-z0-9_-]+)?>")
_LAST_TAG = re.compile(r"<(/?)think(:[A-Za-z0-9_-]+)?>\s*\Z")
_ANY_TAG = re.compile(r"<(/?)think(:[A-Za-z0-9_-]+)?>")


class ReasoningFields(RequestBody):
    """On every generating route."""

    enable_thinking: bool | None = None
    reasoning_effort: str | None = Field(None, max_length=40)
    reasoning_budget_tokens: int | None = Field(None, ge=-1, le=MOST)
    thinking_token_budget: int | None = Field(None, ge=-1, le=MOST)
    thinking: AnyJson = None
    reasoning: AnyJson = None


class Thinking(NamedTuple):
    """What a client asks for; None is not said."""

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    """Tokens; -1 is no bound."""

    def variables(self, template: str) -> dict[str, JsonValue]:
        """For the chat template: of what it reads."""
        said: dict[str, JsonValue] = {}
        if self.enabled is not None:
            said |= {"enable_thinking": self.enabled, "thinking": self.enabled}
        if self.effort is not None and self.enabled is not False:
            said["reasoning_effort"] = self.effort
        return {name: value for name, value in said.items() if _reads(template, name)}

    def bound(self, template: str) -> int | None:
        """Tokens of thought, at most; None is no bound."""
        if self.enabled is False:
            return 0
        if self.budget is not None:
            return None if self.budget < 0 else self.budget
        if self.effort is None or _reads(template, "reasoning_effort"):
            return None
        return EFFORTS.get(self.effort)


def thinking_of(
    fields: ReasoningFields, variables: Mapping[str, JsonValue] | None = None, effort: JsonValue = None
) -> Thinking:
    """`variables`: the request's chat_template_kwargs, `effort`: of the route's own field. Raises ApiError 400.

    The plainest word wins: enable_thinking, then thinking.type, then the variables, then an effort or a budget of none.
    """
    block = _object(fields.thinking, "thinking")
    reasoning = _object(fields.reasoning, "reasoning")
    kind = block.get("type")
    if kind not in (None, "enabled", "disabled", "adaptive", "auto"):
        raise invalid(f"thinking.type {kind!r} is unknown; there are enabled, disabled and adaptive", "thinking.type")
    word = _effort(fields.reasoning_effort, reasoning.get("effort"), effort)
    budget = fields.reasoning_budget_tokens
    for value, param in (
        (fields.thinking_token_budget, "thinking_token_budget"),
        (block.get("budget_tokens"), "thinking.budget_tokens"),
        (reasoning.get("max_tokens"), "reasoning.max_tokens"),
    ):
        if budget is None and value is not None:
            budget = _count(value, param)
    said = variables or {}
    switches = (
        fields.enable_thinking,
        {"enabled": True, "disabled": False}.get(str(kind)),
        said.get("enable_thinking"),
        said.get("thinking"),
        reasoning.get("enabled"),
        False if word == "none" or budget == 0 else None,
    )
    enabled = next((switch for switch in switches if isinstance(switch, bool)), None)
    return Thinking(enabled, None if word == "none" else word, budget)


def reasoning_of(template: str, tail: str, thinking: Thinking, *, continued: bool) -> Reasoning | None:
    """How a model whose prompt ends in `tail` tells its thoughts from its answer; None if it does not.

    `tail` is text with the names of special tokens; `continued`: it ends in an answer that was begun.
    """
    format = format_of(template)
    if format is None:
        return None
    budget = thinking.bound(template)
    if format == "think":
        place = _tags(template, tail, continued=continued)
        return None if place is None else Reasoning(format=format, suffix=place[0], begun=place[1], budget=budget)
    begun = _begun(marks_of(format), tail)
    if continued and not begun:
        return None
    return Reasoning(format=format, begun=begun, budget=budget)


def _tags(template: str, tail: str, *, continued: bool) -> tuple[str, str] | None:
    """The suffix of a model's tags, and those that its prompt ends in. Only what the prompt ends in counts: tags of
    earlier turns are theirs.
    """
    found = _LAST_TAG.search(tail)
    if found is None and continued:
        found = next(iter(reversed(list(_ANY_TAG.finditer(tail)))), None)
    if found is not None:
        suffix = found.group(2) or ""
        opened = f"<think{suffix}>"
        return suffix, f"{opened}</think{suffix}>" if found.group(1) else opened
    suffixes = {match.group(1) or "" for match in _TAG.finditer(template)}
    if len(suffixes) != 1:
        return None
    suffix = suffixes.pop()
    return suffix, f"<think{suffix}></think{suffix}>" if continued else ""


def _begun(marks: Marks, tail: str) -> str:
    """The longest beginning of a header that the prompt ends in."""
    found = ""
    for header in marks.headers:
        for length in range(len(header.text), len(found), -1):
            if tail.endswith(header.text[:length]):
                found = header.text[:length]
                break
    return found


def _reads(template: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", template) is not None


def _object(value: JsonValue, param: str) -> Mapping[str, JsonValue]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(f"{param} must be an object", param)
    return value


def _effort(*values: JsonValue) -> str | None:
    value = next((each for each in values if each is not None), None)
    if value is None or (isinstance(value, str) and value):
        return value
    raise invalid("reasoning_effort must be a word, such as low, medium or high", "reasoning_effort")


def _count(value: JsonValue, param: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= MOST:
        raise invalid(f"{param} must be a number of tokens; -1 is no bound", param)
    return value

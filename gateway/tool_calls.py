"""From what a worker tells of calls to calls as clients know them: a name, then its arguments, piece by piece. Pure."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pomona.gateway.body import JsonObject
from pomona.gateway.ids import new_id
from pomona.gateway.json_text import ObjectText
from pomona.gateway.tool_dialect import HARMONY, JSON, LENIENT, OWN_IDS, ToolDialect
from pomona.workers.messages import Delta, TokenEvent

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)', re.DOTALL)
_BEFORE_OBJECT = re.compile(r"\s*(?=\{)")
_LONGEST_HEAD = 4096
_NAMELESS = frozenset({"name", "id", "type"})


class CallBegun(NamedTuple):
    number: int
    """Of the answer's calls, from 0."""
    id: str
    name: str


class CallText(NamedTuple):
    """A piece of the arguments' JSON."""

    number: int
    text: str


class CallEnded(NamedTuple):
    number: int
    arguments: str
    """All of its pieces."""
    whole: bool
    """The answer did not end in them."""


AnswerPart = Delta | CallBegun | CallText | CallEnded


class _Found(NamedTuple):
    name: str
    arguments: str
    id: str = ""


class _Call:
    """What was written of one call."""

    def __init__(self, number: int, tool: str) -> None:
        self.number = number
        """As the worker counts."""
        self.tool = tool
        """That its mark named."""
        self.written: list[str] = []
        self.head = ""
        self.held = False
        """It is told when it is whole."""
        self.index: int | None = None
        """As the client counts, once it was begun there."""
        self.object = ObjectText()
        self.arguments: list[str] = []


class CallReader:
    """Calls of one answer. What turns out to be none comes as text of the answer; nothing is made up or lost."""

    def __init__(self, dialect: ToolDialect | None, tools: Sequence[JsonObject], prefix: str) -> None:
        """`tools` as the chat template had them; ids of calls begin with `prefix`."""
        self._dialect = dialect
        self._tools = tools
        self._prefix = prefix
        self._open: _Call | None = None
        self._ids: set[str] = set()

    def read(self, event: TokenEvent) -> Iterator[AnswerPart]:
        """What an event tells; deltas of the tool_call channel are replaced by calls."""
        for delta in event.deltas:
            if delta.channel != "tool_call" or self._dialect is None:
                yield from self._close(cut=False)
                yield delta
            else:
                yield from self._add(delta, self._dialect)
        if event.finish is not None and event.finish.reason in ("stop", "length"):
            yield from self._close(cut=event.finish.reason == "length")

    def _add(self, delta: Delta, dialect: ToolDialect) -> Iterator[AnswerPart]:
        if self._open is None or self._open.number != delta.call:
            yield from self._close(cut=False)
            self._open = _Call(delta.call, delta.name)
        call, text = self._open, delta.text
        call.written.append(text)
        if call.index is None and not call.held:
            call.head += text
            text = self._behind_head(call, dialect)
            if not call.held and (name := call.tool) and text:
                yield self._begin(call, name, "")
        if call.index is not None and (piece := call.object.feed(text)):
            call.arguments.append(piece)
            yield CallText(call.index, piece)

    def _behind_head(self, call: _Call, dialect: ToolDialect) -> str:
        """The beginning of a call's arguments; empty while they have not begun, and for a call that is held."""
        if dialect.name not in (HARMONY, JSON):
            call.held = True
            return ""
        found = (_BEFORE_OBJECT if dialect.name == HARMONY else _HEAD).match(call.head)
        if found is None:
            call.held = len(call.head) > _LONGEST_HEAD
            return ""
        if dialect.name == JSON:
            call.tool = _text_of(found.group(1))
            call.held = not call.tool
        return "" if call.held else call.head[found.end() :]

    def _begin(self, call: _Call, name: str, id: str) -> CallBegun:
        call.index = len(self._ids)
        id = id if id and id not in self._ids else new_id(self._prefix)
        self._ids.add(id)
        return CallBegun(call.index, id, name)

    def _close(self, *, cut: bool) -> Iterator[AnswerPart]:
        call, self._open = self._open, None
        if call is None:
            return
        if call.index is not None:
            yield CallEnded(call.index, "".join(call.arguments), call.object.whole)
            return
        written = "".join(call.written)
        found = self._parse(call, written, cut=cut)
        for one in found:
            begun = self._begin(call, one.name, one.id)
            yield begun
            yield CallText(begun.number, one.arguments)
            yield CallEnded(begun.number, one.arguments, True)
        if not found:
            yield Delta("content", written)

    def _parse(self, call: _Call, written: str, *, cut: bool) -> list[_Found]:
        """The calls that a text holds; none if not all of it is whole."""
        dialect = self._dialect
        assert dialect is not None, "there is no call without it"
        if dialect.name == HARMONY:
            parsed: object = {"name": call.tool, "arguments": written}
        elif dialect.parse is None or (cut and dialect.name in LENIENT):
            return []
        else:
            text = _before_close(written, dialect.close) if cut else written
            try:
                parsed = dialect.parse(text.strip(), self._tools)
            except Exception:  # parsers of other people's making: whatever they raise, it is no call
                return []
        found = [_checked(each) for each in (parsed if isinstance(parsed, list) else [parsed])]
        whole = [one for one in found if one is not None and (one.name in written or one.name == call.tool)]
        if len(whole) < len(found):
            return []
        return whole if dialect.name in OWN_IDS else [one._replace(id="") for one in whole]


def _before_close(written: str, close: str) -> str:
    """Without what an answer that was cut off had of the mark behind the call."""
    length = next((size for size in range(len(close) - 1, 0, -1) if written.endswith(close[:size])), 0)
    return written[: len(written) - length]


def _checked(parsed: object) -> _Found | None:
    """None for what is no name with an object of JSON."""
    if not isinstance(parsed, dict):
        return None
    name, id = parsed.get("name"), parsed.get("id")
    if "arguments" not in parsed and not parsed.keys() <= _NAMELESS:
        return None
    arguments = parsed.get("arguments", {})
    try:
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(arguments)
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(arguments, dict) or not isinstance(name, str) or not name:
        return None
    return _Found(name, text, id if isinstance(id, str) else "")


def _text_of(literal: str) -> str:
    """A JSON string's text; empty if it is none."""
    try:
        text = json.loads(literal)
        text.encode()
    except ValueError:
        return ""
    return str(text)

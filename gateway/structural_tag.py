"""Structural tags, free text with fixed stretches between marks, as one llguidance grammar. Pure."""

import json
import re
from collections.abc import Sequence
from typing import cast

from pomona.gateway.body import JsonObject, JsonValue
from pomona.gateway.constraint_schema import check_keywords
from pomona.gateway.errors import invalid
from pomona.gateway.gbnf import as_lark
from pomona.workers.constraint.grammar import schema_grammar

MOST_PARTS = 1000
DEEPEST = 32
_SLASH = re.compile(r"(\\.)|/", re.DOTALL)

KINDS = (
    "const_string",
    "json_schema",
    "regex",
    "grammar",
    "any_text",
    "sequence",
    "or",
    "tag",
    "triggered_tags",
    "tags_with_separator",
)


def grammar_of_tags(value: JsonObject, param: str) -> str:
    """For `LLMatcher`, of `{"format": …}`, or of the older `{"structures": […], "triggers": […]}`.

    Raises ApiError 400 with the place of what is no structural tag, or is none that a grammar here can follow.
    """
    if "format" in value:
        root, path = value["format"], f"{param}.format"
    else:
        root, path = _from_structures(value, param), param
    builder = _Builder()
    start = builder.part(root, path, last=True, depth=0)
    main = "\n".join([f"start: {start}", "TEXT: /(?s:.*)/", *builder.rules])
    grammars = [{"name": "main", "lark_grammar": main}, *builder.grammars]
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


def _from_structures(value: JsonObject, param: str) -> JsonObject:
    structures = _list(value.get("structures"), f"{param}.structures")
    tags: list[JsonValue] = []
    for index, each in enumerate(structures):
        where = f"{param}.structures[{index}]"
        structure = _object(each, where)
        content: JsonObject = {"type": "json_schema", "json_schema": structure.get("schema")}
        tags.append({"begin": structure.get("begin"), "content": content, "end": structure.get("end", "")})
    return {"type": "triggered_tags", "triggers": value.get("triggers"), "tags": tags}


class _Builder:
    """Collects rules and grammars beside the expressions that refer to them."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        self.grammars: list[JsonObject] = []
        self._parts = 0

    def part(self, value: JsonValue, path: str, *, last: bool, depth: int) -> str:
        """One part as an expression of Lark; `last`: nothing follows it."""
        self._parts += 1
        if self._parts > MOST_PARTS or depth > DEEPEST:
            raise invalid(f"{path}: there are more than {MOST_PARTS} parts, or more than {DEEPEST} levels", path)
        given = _object(value, path)
        match given.get("type"):
            case "const_string":
                return _quoted(_text(given.get("value"), f"{path}.value"))
            case "json_schema":
                return self._schema(given, path)
            case "regex":
                return f"/{_SLASH.sub(_escape, _text(given.get('pattern'), f'{path}.pattern'))}/"
            case "grammar":
                return self._grammar(_text(given.get("grammar"), f"{path}.grammar"), f"{path}.grammar")
            case "any_text":
                if not last:
                    raise invalid(f"{path}: any_text can stand at the end only, or in a tag that has an end", path)
                return "TEXT"
            case "sequence":
                parts = _list(given.get("elements"), f"{path}.elements")
                final = len(parts) - 1
                return (
                    "("
                    + " ".join(
                        self.part(each, f"{path}.elements[{index}]", last=last and index == final, depth=depth + 1)
                        for index, each in enumerate(parts)
                    )
                    + ")"
                )
            case "or":
                parts = _list(given.get("elements"), f"{path}.elements")
                return _any_of(
                    self.part(each, f"{path}.elements[{index}]", last=last, depth=depth + 1)
                    for index, each in enumerate(parts)
                )
            case "tag":
                begin = _text(given.get("begin"), f"{path}.begin")
                return f"({_quoted(begin)} {self._inside(given, path, last=last, depth=depth)})"
            case "triggered_tags":
                return self._triggered(given, path, last=last, depth=depth)
            case "tags_with_separator":
                return self._separated(given, path, last=last, depth=depth)
            case kind:
                raise invalid(f"{path}.type {kind!r} is not supported; there are {', '.join(KINDS)}", f"{path}.type")

    def _inside(self, tag: JsonObject, path: str, *, last: bool, depth: int) -> str:
        """A tag behind its begin."""
        ends = tag.get("end", "")
        texts = [_text(end, f"{path}.end", empty=True) for end in (ends if isinstance(ends, list) else [ends])]
        if not texts:
            raise invalid(f"{path}.end must be a text or a list of some", f"{path}.end")
        content = _object(tag.get("content"), f"{path}.content")
        if content.get("type") == "any_text" and all(texts):
            return self._rule(f"TEXT {_any_of(map(_quoted, texts))}", lazy=True)
        inner = self.part(content, f"{path}.content", last=last and not all(texts), depth=depth + 1)
        return f"{inner} {_any_of(map(_quoted, texts))}"

    def _triggered(self, given: JsonObject, path: str, *, last: bool, depth: int) -> str:
        triggers = [
            _text(each, f"{path}.triggers[{index}]")
            for index, each in enumerate(_list(given.get("triggers"), f"{path}.triggers"))
        ]
        behind: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        for index, each in enumerate(_list(given.get("tags"), f"{path}.tags")):
            where = f"{path}.tags[{index}]"
            tag = _object(each, where)
            begin = _text(tag.get("begin"), f"{where}.begin")
            trigger = next((one for one in triggers if begin.startswith(one)), None)
            if trigger is None:
                raise invalid(f"{where}.begin starts with none of the triggers", f"{where}.begin")
            inside = self._inside(tag, where, last=False, depth=depth + 1)
            behind[trigger].append(f"({_quoted(begin[len(trigger) :])} {inside})")
        tags = [
            f"({self._rule(f'TEXT {_quoted(trigger)}', lazy=True)} {_any_of(each)})"
            for trigger, each in behind.items()
            if each
        ]
        one = _any_of(tags)
        if given.get("stop_after_first"):
            if given.get("at_least_one"):
                return one
            return _any_of([one, self._text_at_end(path, last=last)])
        return f"({one}{'+' if given.get('at_least_one') else '*'} {self._text_at_end(path, last=last)})"

    def _text_at_end(self, path: str, *, last: bool) -> str:
        if not last:
            raise invalid(f"{path}: triggered_tags end in free text, so nothing can follow them", path)
        return "TEXT"

    def _separated(self, given: JsonObject, path: str, *, last: bool, depth: int) -> str:
        separator = _quoted(_text(given.get("separator"), f"{path}.separator", empty=True))
        tags = []
        for index, each in enumerate(_list(given.get("tags"), f"{path}.tags")):
            where = f"{path}.tags[{index}]"
            tag = _object(each, where)
            begin = _quoted(_text(tag.get("begin"), f"{where}.begin"))
            tags.append(f"({begin} {self._inside(tag, where, last=False, depth=depth + 1)})")
        one = _any_of(tags)
        several = one if given.get("stop_after_first") else f"({one} ({separator} {one})*)"
        return several if given.get("at_least_one") else f"{several}?"

    def _schema(self, given: JsonObject, path: str) -> str:
        schema = given.get("json_schema")
        if not isinstance(schema, dict | bool):
            raise invalid(f"{path}.json_schema must be a JSON Schema: an object, true or false", f"{path}.json_schema")
        if given.get("style", "json") != "json":
            raise invalid(f"{path}.style {given.get('style')!r} is not supported; there is json", f"{path}.style")
        check_keywords(schema, f"{path}.json_schema")
        try:
            written = schema_grammar(json.dumps(schema))
        except ValueError as error:
            raise invalid(f"{path}.json_schema: {error}", f"{path}.json_schema") from error
        return self._beside({"json_schema": cast(JsonValue, written)})

    def _grammar(self, text: str, path: str) -> str:
        try:
            return self._beside({"lark_grammar": as_lark(text)})
        except ValueError as error:
            raise invalid(f"{path}: {error}", path) from error

    def _beside(self, grammar: JsonObject) -> str:
        name = f"part_{len(self.grammars)}"
        self.grammars.append({"name": name, **grammar})
        return f"@{name}"

    def _rule(self, expression: str, *, lazy: bool) -> str:
        name = f"rule_{len(self.rules)}"
        self.rules.append(f"{name}{'[lazy]' if lazy else ''}: {expression}")
        return name


def _any_of(expressions: object) -> str:
    listed = list(cast(Sequence[str], expressions))
    return f"({' | '.join(listed)})"


def _escape(found: re.Match[str]) -> str:
    return found.group(1) or "\\/"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7F")


def _object(value: JsonValue, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise invalid(f"{path} must be an object", path)
    return value


def _list(value: JsonValue, path: str) -> list[JsonValue]:
    if not isinstance(value, list) or not value:
        raise invalid(f"{path} must be a list of one or more", path)
    return value


def _text(value: JsonValue, path: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise invalid(f"{path} must be a text" + ("" if empty else " that is not empty"), path)
    return value

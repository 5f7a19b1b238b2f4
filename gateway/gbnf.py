"""Grammars as clients write them, llama.cpp's (GBNF) too, in llguidance's language (Lark)."""

import re
from collections.abc import Mapping
from typing import Any

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    GbnfToLarkError,
    GrammarParser,
    LiteralNode,
    RegexNode,
    RepetitionNode,
    RuleRefNode,
    SequenceNode,
)

_RULE = re.compile(r"^\s*[A-Za-z][A-Za-z0-9_-]*\s*::=", re.MULTILINE)
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*')
_TEXTS = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*')
_UNICODE_ESCAPE = re.compile(r"\\[uU]")
_CHARACTER = re.compile(r"\\x[0-9A-Fa-f]{2}|\\.|.", re.DOTALL)


def is_gbnf(text: str) -> bool:
    """GBNF writes rules with `::=`, Lark with a colon."""
    return _RULE.search(_QUOTED.sub('""', text)) is not None


def as_lark(text: str) -> str:
    """A grammar in Lark, of one in either language. Raises ValueError for what cannot be followed here."""
    if is_gbnf(text):
        return lark_of(text)
    if "<[" in _TEXTS.sub("", text):
        raise ValueError("tokens by number, <[…]>, are not supported; write their text")
    return text


def lark_of(text: str) -> str:
    """The same language in Lark. Raises ValueError for what is no GBNF, or cannot be converted.

    llguidance's own conversion makes terminals of rules, and a terminal takes all that it can: blanks before a line's
    end would swallow it. So here every terminal is a single character, and rules stay rules.
    """
    bare = _QUOTED.sub(lambda found: "" if found[0][0] == "#" else found[0], text)
    if _UNICODE_ESCAPE.search(bare):
        raise ValueError("the escapes \\u and \\U are not supported; write the characters themselves")
    try:
        rules: Mapping[str, Any] = GrammarParser().parse(text)
    except GbnfToLarkError as error:
        raise ValueError(f"this is no GBNF: {error}") from error
    except RecursionError as error:
        raise ValueError("its groups are nested too deep") from error
    if "root" not in rules:
        raise ValueError("a GBNF grammar begins with the rule `root`, and there is none")
    names = {name: "start" if name == "root" else f"rule_{index}" for index, name in enumerate(rules)}
    return "\n".join(f"{names[name]}: {_written(rule.alternatives, names)}" for name, rule in rules.items())


def _written(node: Any, names: Mapping[str, str]) -> str:
    match node:
        case LiteralNode():
            single = [f'"{character}"' for character in _CHARACTER.findall(_one_line(node.value))]
            return "(" + (" ".join(single) or '""') + ")"
        case RegexNode():
            return f"/{_one_line(node.rx)}/"
        case RuleRefNode():
            if node.name not in names:
                raise ValueError(f"the rule `{node.name}` is not defined")
            return names[node.name]
        case RepetitionNode():
            most = "" if node.max_times is None else node.max_times
            return f"({_written(node.node, names)}){{{node.min_times},{most}}}"
        case SequenceNode():
            return "(" + (" ".join(_written(each, names) for each in node.nodes) or '""') + ")"
        case AlternativeNode():
            return "(" + " | ".join(_written(each, names) for each in node.alternatives) + ")"
        case _:
            raise ValueError(f"{type(node).__name__} has no counterpart in Lark")


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")

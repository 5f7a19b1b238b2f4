"""How a model writes its calls of tools: the marks and the parser that mlx-lm has for its chat template."""

import logging
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

from pomona.gateway.body import JsonObject
from pomona.reasoning_formats import format_of

log = logging.getLogger("pomona.gateway")

Parser = Callable[[str, Sequence[JsonObject]], object]
"""A call's text and the tools as the chat template had them, to a call or a list of them; raises anything."""

HARMONY = "harmony"
"""Its marks name the tool, and a call's text is the arguments alone."""
JSON = "json_tools"
"""A call's text is `{"name": …, "arguments": {…}}`."""
LENIENT = frozenset({"glm47", "laguna", "longcat", "minicpm5", "muse_spark"})
"""Their parsers read a call that was cut off as one with fewer arguments."""
OWN_IDS = frozenset({"kimi_k2", "mistral"})
"""The model names its calls itself, and its template wants these names back."""

_PACKAGE = "pomona_mlx_lm"
_READS_TOOLS = re.compile(r"\btools\b")


class ToolDialect(NamedTuple):
    name: str
    open: str = ""
    """The mark before a call."""
    close: str = ""
    """The mark behind it; empty where a call reaches to the end of the answer."""
    parse: Parser | None = None


def dialect_of(tokenizer: Any) -> ToolDialect | None:
    """None where the chat template takes no tools, or writes calls in a way that mlx-lm does not read."""
    template = _with_tools(tokenizer.chat_template)
    if not _READS_TOOLS.search(template):
        return None
    if format_of(template) == HARMONY:
        return ToolDialect(HARMONY)
    name = tokenizer.init_kwargs.get("tool_parser_type")
    if name is None:
        seen = SimpleNamespace(chat_template=template, get_vocab=tokenizer.get_vocab)
        name = _module("tokenizer_utils")._infer_tool_parser(seen)
    if name is None:
        return None
    try:
        parser = _module(f"tool_parsers.{name}")
    except ModuleNotFoundError:
        log.warning("tool-parser-unknown name=%s", name)
        return None
    return ToolDialect(name, parser.tool_call_start, parser.tool_call_end, cast(Parser, parser.parse_tool_call))


def _with_tools(template: object) -> str:
    """The template that renders a conversation with tools, where a tokeniser names several."""
    if isinstance(template, dict):
        return str(template.get("tool_use", template.get("default", "")))
    return str(template or "")


def _module(name: str) -> Any:
    """A module of mlx-lm that needs no MLX; under a name of its own, as mlx-lm's package itself imports MLX."""
    if _PACKAGE not in sys.modules:
        found = find_spec("mlx_lm")
        package = ModuleType(_PACKAGE)
        package.__path__ = list((found.submodule_search_locations if found else None) or ())
        sys.modules[_PACKAGE] = package
    return import_module(f"{_PACKAGE}.{name}")

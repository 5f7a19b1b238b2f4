"""Which marks and which parser a model has; mlx-lm says it, and MLX stays out of the gateway."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from pomona.gateway.tool_dialect import dialect_of

HERMES = "{% if tools %}{{ tools | tojson }}{% endif %}<tool_call>{{ tool_call.name }}"


def tokenizer(template: object, vocabulary: tuple[str, ...] = (), **settings: object) -> SimpleNamespace:
    return SimpleNamespace(chat_template=template, init_kwargs=settings, get_vocab=lambda: dict.fromkeys(vocabulary, 0))


@pytest.mark.parametrize(
    ("template", "name", "open", "close"),
    [
        (HERMES, "json_tools", "<tool_call>", "</tool_call>"),
        ({"default": "plain", "tool_use": HERMES}, "json_tools", "<tool_call>", "</tool_call>"),
        ("{{ tools }}<tool_call>\n<function=", "qwen3_coder", "<tool_call>", "</tool_call>"),
        ("{{ tools }}[TOOL_CALLS]", "mistral", "[TOOL_CALLS]", ""),
        ("{{ tools }}<|tool_call><tool_call|>", "gemma4", "<|tool_call>", "<tool_call|>"),
        ('{{ tools }}<function name="<param name="', "minicpm5", "<function name=", "</function>"),
        ("{{ tools }}<|channel|>", "harmony", "", ""),
    ],
)
def test_the_template_tells_the_dialect(template: object, name: str, open: str, close: str) -> None:
    dialect = dialect_of(tokenizer(template))
    assert dialect is not None
    assert (dialect.name, dialect.open, dialect.close) == (name, open, close)


def test_a_tokeniser_may_name_its_parser() -> None:
    dialect = dialect_of(tokenizer(HERMES, tool_parser_type="laguna"))
    assert dialect is not None
    assert dialect.name == "laguna"
    assert dialect_of(tokenizer(HERMES, tool_parser_type="no_such_parser")) is None


def test_the_vocabulary_tells_it_where_the_template_does_not() -> None:
    dialect = dialect_of(tokenizer("{{ tools }}", ("<|tool_call_start|>", "<|tool_call_end|>")))
    assert dialect is not None
    assert dialect.name == "pythonic"


@pytest.mark.parametrize(
    "template", [None, "", "{{ messages }}<tool_call>tool_call.name", "{{ tools }}", {"default": "plain"}]
)
def test_none_where_a_template_takes_no_tools_or_writes_calls_in_an_unknown_way(template: object) -> None:
    assert dialect_of(tokenizer(template)) is None


def test_parsers_are_read_without_mlx() -> None:
    code = """
import sys
from types import SimpleNamespace
from pomona.gateway.tool_dialect import dialect_of
for name in ("json_tools", "laguna", "minicpm5", "kimi_k3"):
    seen = SimpleNamespace(chat_template="tools", init_kwargs={"tool_parser_type": name}, get_vocab=dict)
    assert dialect_of(seen).parse is not None
assert dialect_of(SimpleNamespace(chat_template="tools", init_kwargs={}, get_vocab=dict)) is None
assert not [name for name in sys.modules if name.split(".")[0] in ("mlx", "mlx_lm")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

"""Calls from what a worker tells of them: in any pieces, in every dialect, whole, cut off or none at all."""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.gateway.json_text import ObjectText
from pomona.gateway.tool_calls import CallBegun, CallEnded, CallReader, CallText
from pomona.gateway.tool_dialect import HARMONY, ToolDialect, dialect_of
from pomona.workers.messages import Delta, Finish, RequestId, TokenEvent, Usage
from tests.gateway.test_tool_dialect import tokenizer

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
            },
        },
    }
]
ARGUMENTS = {"city": 'a "b" } ]\n</tool_call>', "days": 3, "tags": [{"x": None}, "é"]}
CALL = json.dumps({"name": "weather", "arguments": ARGUMENTS}, ensure_ascii=False)


def dialect(name: str) -> ToolDialect:
    if name == HARMONY:
        return ToolDialect(HARMONY)
    found = dialect_of(tokenizer("tools", tool_parser_type=name))
    assert found is not None
    return found


class Told(NamedTuple):
    content: str
    calls: list[tuple[str, str]]
    """Names with arguments."""
    whole: list[bool]
    pieces: list[int]
    """Of arguments, for each call."""
    ids: list[str]


def told(
    name: str,
    deltas: Sequence[Delta],
    *,
    finish: str = "stop",
    eager: Iterable[str] = ("weather",),
    split: bool = False,
) -> Told:
    """What the deltas are for a client, checked for the order of a call's parts."""
    reader = CallReader(dialect(name), TOOLS, "call_")
    events = [TokenEvent(id=RequestId("r"), position=0, deltas=(each,)) for each in deltas]
    if not split:
        events = [TokenEvent(id=RequestId("r"), position=0, deltas=tuple(deltas))]
    end = Finish(reason=finish, usage=Usage(1, 1))  # type: ignore[arg-type]
    events.append(TokenEvent(id=RequestId("r"), position=1, finish=end))
    content, calls, whole, pieces, ids = "", list[tuple[str, str]](), list[bool](), list[int](), list[str]()
    open: int | None = None
    for event in events:
        for part in reader.read(event):
            match part:
                case Delta():
                    assert open is None
                    assert part.channel == "content"
                    content += part.text
                case CallBegun():
                    assert open is None
                    assert part.number == len(calls)
                    open = part.number
                    calls.append((part.name, ""))
                    pieces.append(0)
                    ids.append(part.id)
                case CallText():
                    assert open == part.number
                    calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
                    pieces[-1] += 1
                case CallEnded():
                    assert open == part.number
                    assert part.arguments == calls[-1][1]
                    whole.append(part.whole)
                    open = None
    assert open is None
    assert len(set(ids)) == len(ids)
    return Told(content, calls, whole, pieces, ids)


def pieces_of(text: str, cuts: Iterable[int], call: int = 0, name: str = "") -> list[Delta]:
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [Delta("tool_call", text[a:b], call, name) for a, b in pairwise(bounds) if a < b]


cuts = st.lists(st.integers(0, 500), max_size=12)


@given(cuts, st.booleans(), st.sampled_from(["", "\n", "  \n\t"]))
def test_json_in_any_pieces(cuts: list[int], split: bool, blanks: str) -> None:
    found = told("json_tools", pieces_of(blanks + CALL + blanks, cuts), split=split)
    assert found.content == ""
    assert [name for name, _ in found.calls] == ["weather"]
    assert json.loads(found.calls[0][1]) == ARGUMENTS
    assert found.calls[0][1] in CALL
    assert found.whole == [True]


@given(cuts, st.booleans())
def test_arguments_behind_a_mark_that_names_the_tool(cuts: list[int], split: bool) -> None:
    text = " " + json.dumps(ARGUMENTS) + "\n"
    found = told(HARMONY, pieces_of(text, cuts, name="weather"), split=split)
    assert found.calls == [("weather", text.strip())]
    assert found.content == ""


def test_json_is_told_while_it_is_written() -> None:
    found = told("json_tools", [Delta("tool_call", each) for each in CALL], split=True)
    assert found.pieces == [len(json.dumps(ARGUMENTS, ensure_ascii=False))]
    assert found.ids[0].startswith("call_")


def test_several_calls_between_text() -> None:
    deltas = [
        Delta("content", "Let me see."),
        *pieces_of(CALL, [20]),
        *pieces_of(CALL, [50], call=1),
        Delta("content", "Done"),
        *pieces_of(CALL, [], call=2),
    ]
    found = told("json_tools", deltas)
    assert found.content == "Let me see.Done"
    assert [json.loads(arguments) for _, arguments in found.calls] == [ARGUMENTS] * 3


XML = "\n<function=weather>\n<parameter=city>\nOslo\nS\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n"
WRITTEN = [
    ("json_tools", '{"arguments": {"city": "Oslo", "days": 3}, "name": "weather"}', {"city": "Oslo", "days": 3}),
    ("json_tools", '{"name": "weather", "arguments": "{\\"days\\": 3}"}', {"days": 3}),
    ("json_tools", '{"name": "weather"}', {}),
    ("qwen3_coder", XML, {"city": "Oslo\nS", "days": 3}),
    ("glm47", "weather\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>", {"city": "7"}),
    ("pythonic", "[weather(city='Oslo', days=3)]", {"city": "Oslo", "days": 3}),
    ("mistral", 'weather[ARGS]{"days": 3}', {"days": 3}),
    ("mistral", '[{"name": "weather", "arguments": {"days": 3}}]', {"days": 3}),
    ("gemma4", 'call:weather{city:<|"|>Oslo<|"|>,days:3}', {"city": "Oslo", "days": 3}),
    ("function_gemma", "call:weather{city:<escape>Oslo<escape>,days:3}", {"city": "Oslo", "days": 3}),
    (
        "minimax_m2",
        '<invoke name="weather">\n<parameter name="days">3</parameter>\n</invoke>',
        {"days": 3},
    ),
    ("minicpm5", '"weather"><param name="days">3</param>', {"days": 3}),
    (
        "longcat",
        "weather\n<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>3</longcat_arg_value>",
        {"days": 3},
    ),
]


@pytest.mark.parametrize(("name", "text", "arguments"), WRITTEN)
def test_every_dialect_is_read_by_its_parser(name: str, text: str, arguments: dict[str, Any]) -> None:
    found = told(name, [Delta("tool_call", each) for each in text], split=True)
    assert found.content == ""
    assert [(tool, json.loads(given)) for tool, given in found.calls] == [("weather", arguments)]


def test_a_text_may_hold_several_calls() -> None:
    one = "<|tool_call_begin|>functions.weather:%d<|tool_call_argument_begin|>{}<|tool_call_end|>"
    kimi = told("kimi_k2", [Delta("tool_call", one % 0 + one % 1)])
    assert kimi.calls == [("weather", "{}")] * 2
    assert kimi.ids == ["functions.weather:0", "functions.weather:1"]
    again = told("kimi_k2", [Delta("tool_call", one % 0, call) for call in (0, 1)]).ids
    assert again[0] == "functions.weather:0"
    assert again[1].startswith("call_")
    assert told("pythonic", [Delta("tool_call", "[weather(days=1), weather(days=2)]")]).calls == [
        ("weather", '{"days": 1}'),
        ("weather", '{"days": 2}'),
    ]
    assert len(told("json_tools", [Delta("tool_call", f"[{CALL}, {CALL}]")]).calls) == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("json_tools", "weather in Oslo"),
        ("json_tools", '{"name": "weather", "parameters": {"city": "Oslo"}}'),
        ("json_tools", '{"name": 7, "arguments": {}}'),
        ("json_tools", '{"name": "weather", "arguments": [1]}'),
        ("json_tools", '{"name": "weather", "arguments": "Oslo"}'),
        ("json_tools", '{"name": "\\ud800", "arguments": {}}'),
        ("json_tools", '{"name": "' + "w" * 5000 + '", "arguments": '),
        ("json_tools", f'[{CALL}, {{"name": 7}}]'),
        ("json_tools", "[" * 5000),
        ("json_tools", '{"arguments": {"x": NaN}, "name": "weather"}'),
        ("glm47", ""),
        ("glm47", "<arg_key>"),
        ("pythonic", "(" * 3000),
        ("pythonic", "[weather(days=1e999)]"),
        ("pythonic", "[weather(days={1})]"),
        ("qwen3_coder", "<function=weather>"),
        (HARMONY, "Oslo"),
        (HARMONY, "[1]"),
    ],
)
def test_what_is_no_call_is_text_of_the_answer(name: str, text: str) -> None:
    named = "weather" if name == HARMONY else ""
    found = told(name, [Delta("tool_call", text, 0, named)])
    assert found.calls == []
    assert found.content == text


def test_a_half_surrogate_is_written_with_its_escape() -> None:
    found = told("json_tools", [Delta("tool_call", '{"arguments": {"x": "\\ud800"}, "name": "weather"}')])
    assert found.calls == [("weather", '{"x": "\\ud800"}')]


@pytest.mark.parametrize("length", range(1, len(CALL)))
def test_a_cut_call_is_told_as_far_as_it_came(length: int) -> None:
    """Once its name is known: before that its text is the answer's."""
    text = CALL[:length]
    begins = CALL.index('{"city')
    found = told("json_tools", [Delta("tool_call", text)], finish="length")
    if length <= begins:
        assert found == Told(text, [], [], [], [])
    else:
        assert found.content == ""
        assert found.calls == [("weather", text[begins : len(CALL) - 1])]
        assert found.whole == [length == len(CALL) - 1]


@pytest.mark.parametrize(("name", "text", "_"), [each for each in WRITTEN if each[0] not in ("json_tools", "mistral")])
def test_half_a_call_is_never_taken_for_a_whole_one(name: str, text: str, _: object) -> None:
    for length in range(1, len(text.rstrip()) - len(")]}>")):
        if not text[length:].strip(")]}> \n"):
            continue
        found = told(name, [Delta("tool_call", text[:length])], finish="length")
        assert found.content == text[:length]
        assert found.calls == []


@given(
    st.dictionaries(st.text(max_size=5), st.text(max_size=8) | st.lists(st.dictionaries(st.text(), st.none()))), cuts
)
def test_an_object_ends_where_its_brace_closes(value: dict[str, Any], cuts: list[int]) -> None:
    text = json.dumps(value)
    reader = ObjectText()
    read = "".join(reader.feed(delta.text) for delta in pieces_of(text + '}"x"]', cuts))
    assert read == text
    assert reader.whole

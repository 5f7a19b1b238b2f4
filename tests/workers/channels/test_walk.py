"""Bytes through the automaton of each format: every split of a text comes out the same."""

from itertools import pairwise

import pytest

from pomona.reasoning_formats import marks_of
from pomona.workers.channels.graph import ANSWER, THOUGHT, Graph, graph_of
from pomona.workers.channels.walk import Place, Strayed, walk, withheld
from pomona.workers.messages import Constraint, Limits, Reasoning, Request, RequestId, Sampling, Tools
from tests.support.formats import DIALECTS, Dialect

BY_NAME = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def graph(
    dialect: Dialect | None = None, *, tools: Tools | None = None, constraint: Constraint | None = None
) -> tuple[Graph, Place]:
    """The automaton and where the prompt leaves it."""
    reasoning = None
    if dialect is not None:
        reasoning = Reasoning(format=dialect.format, suffix=dialect.suffix, begun=dialect.begun)
    built = graph_of(
        Request(
            id=RequestId("r"),
            model="m",
            prompt=(1,),
            sampling=Sampling(seed=0),
            limits=Limits(max_tokens=9),
            reasoning=reasoning,
            tools=tools,
            constraint=constraint,
        )
    )
    assert built is not None
    place = Place(built.start)
    return built, place if reasoning is None else walk(built, place, reasoning.begun.encode()).place


def read(built: Graph, place: Place, pieces: list[str]) -> tuple[dict[str, str], Place]:
    """Each channel's text."""
    texts: dict[str, str] = {}
    for piece in pieces:
        walked = walk(built, place, piece.encode())
        place = walked.place
        for segment in walked.segments:
            texts[segment.channel] = texts.get(segment.channel, "") + segment.text.decode()
        if walked.rest:
            texts["rest"] = texts.get("rest", "") + walked.rest.decode()
            break
    last = withheld(built, place)
    if last is not None:
        texts[last.channel] = texts.get(last.channel, "") + last.text.decode()
    return texts, place


@BY_NAME
def test_every_two_splits_of_a_thought_and_its_answer_come_out_the_same(dialect: Dialect) -> None:
    built, place = graph(dialect)
    text = dialect.writes("Think </thi <| chan", "Yes <thin.")
    expected = {"reasoning": "Think </thi <| chan", "content": "Yes <thin."}
    whole, end = read(built, place, [text])
    assert {channel: each.rstrip("\n") for channel, each in whole.items()} == expected
    assert end.node == ANSWER
    for i in range(len(text) + 1):
        for j in range(i, len(text) + 1):
            assert read(built, place, [text[:i], text[i:j], text[j:]]) == (whole, end)
    assert read(built, place, list(text)) == (whole, end)


@pytest.mark.parametrize("name", ["gemma", "inkling", "harmony", "muse"])
def test_thoughts_that_follow_each_other_are_one_text(name: str) -> None:
    dialect = DIALECTS[name]
    marks = marks_of(dialect.format, dialect.suffix)
    built, place = graph(dialect)
    again = next(header.text for header in marks.headers if header.opens == "thought")
    text = dialect.writes(f"first{marks.closer}{again}\nsecond", "Yes")
    whole, end = read(built, place, [text])
    assert whole["reasoning"].rstrip("\n") == "first\nsecond"
    assert whole["content"] == "Yes"
    for i in range(len(text) + 1):
        assert read(built, place, [text[:i], text[i:]]) == (whole, end)


@BY_NAME
def test_every_header_of_a_format_opens_what_it_says(dialect: Dialect) -> None:
    built, _ = graph(dialect)
    for header in marks_of(dialect.format, dialect.suffix).headers:
        for i in range(1, len(header.text) + 1):
            place = Place(built.start)
            for piece in (header.text[:i], header.text[i:]):
                place = walk(built, place, piece.encode()).place
            assert place.node == (THOUGHT if header.opens == "thought" else ANSWER)


@BY_NAME
def test_no_mark_of_a_place_begins_with_another(dialect: Dialect) -> None:
    for tools in (None, Tools(open="<tool_call>", close="</tool_call>"), Tools(named={"f": None, "ff": None})):
        built, _ = graph(dialect, tools=tools)
        for node in built.nodes.values():
            texts = sorted(mark.text for mark in getattr(node, "marks", ()))
            assert not any(after.startswith(before) for before, after in pairwise(texts))


@pytest.mark.parametrize("name", ["inkling", "harmony", "muse"])
def test_nothing_but_a_header_may_stand_where_one_is_due(name: str) -> None:
    built, place = graph(DIALECTS[name])
    for text in ("Hello", "<|channel|>finale", '{"a"'):
        with pytest.raises(Strayed):
            walk(built, place, text.encode())


def test_an_answer_may_begin_without_a_thought() -> None:
    for name in ("free think", "gemma"):
        built, place = graph(DIALECTS[name])
        assert read(built, place, ["\n", "Just", " so"])[0] == {"content": "Just so"}


def test_the_end_of_a_thought_that_never_began_is_nobodys_text() -> None:
    built, place = graph(DIALECTS["free think"])
    assert read(built, place, ["So it is.", "</th", "ink>", "\n\nYes"])[0] == {"content": "So it is.Yes"}
    assert read(built, place, ["</think>", "Yes"])[0] == {"content": "Yes"}


def test_an_answer_behind_a_thought_may_speak_of_tags() -> None:
    built, place = graph(DIALECTS["opened think"])
    text = "ok</think>Write <think> and </think>."
    assert read(built, place, [text])[0] == {"reasoning": "ok", "content": "Write <think> and </think>."}


def test_what_could_have_become_a_mark_is_text_at_the_end() -> None:
    built, place = graph(DIALECTS["opened think"])
    assert read(built, place, ["so </thin"])[0] == {"reasoning": "so </thin"}


def test_special_tokens_are_marks_or_nothing() -> None:
    built, place = graph(DIALECTS["harmony"])
    place = walk(built, walk(built, place, b"<|channel|>analysis").place, b"<|message|>", special=True).place
    assert place.node == THOUGHT
    odd = walk(built, place, b"<|im_start|>", special=True)
    assert (odd.segments, odd.place) == ((), place)
    closed = walk(built, place, b"<|end|>", special=True)
    assert closed.place.node != THOUGHT
    with pytest.raises(Strayed):
        walk(built, closed.place, b"<|im_start|>", special=True)


def test_a_grammars_bytes_are_left_to_it_and_never_looked_into() -> None:
    built, place = graph(DIALECTS["opened think"], constraint=Constraint("json_object"))
    walked = walk(built, place, b'so</think>\n{"a": "</think>')
    assert (walked.place.node, walked.rest) == (ANSWER, b'{"a": "</think>')


TOOLS = Tools(open="<tool_call>", close="</tool_call>")


def test_calls_are_told_from_the_answer_and_from_each_other() -> None:
    built, place = graph(tools=TOOLS)
    text = "Let me see.<tool_call>\n{1}\n</tool_call>\n<tool_call>{2}</tool_call> Done"
    for pieces in ([text], list(text)):
        segments = []
        here = place
        for piece in pieces:
            walked = walk(built, here, piece.encode())
            here = walked.place
            segments += [(each.channel, each.call, each.text) for each in walked.segments]
        calls = {0: b"", 1: b""}
        for channel, call, part in segments:
            if channel == "tool_call":
                calls[call] += part
        assert calls == {0: b"\n{1}\n", 1: b"{2}"}
        assert b"".join(text for channel, _, text in segments if channel == "content") == b"Let me see.Done"


def called(tools: Tools, *pieces: str, dialect: Dialect | None = None) -> dict[str, bytes]:
    """What special tokens (`<|…|>`) and text are, by channel and call."""
    built, place = graph(dialect, tools=tools)
    texts: dict[str, bytes] = {}
    for piece in pieces:
        walked = walk(built, place, piece.encode(), special=piece.startswith("<|"))
        place = walked.place
        for each in walked.segments:
            key = f"{each.channel} {each.call}" if each.channel == "tool_call" else each.channel
            texts[key] = texts.get(key, b"") + each.text
    return texts


SPECIAL = Tools(open="<|call|>", close="<|called|>")


@pytest.mark.parametrize("name", [None, "free think"])
def test_special_tokens_open_calls_wherever_free_text_may_begin(name: str | None) -> None:
    dialect = DIALECTS[name] if name else None
    one = ("<|call|>", "{1}", "<|called|>")
    assert called(SPECIAL, *one, dialect=dialect) == {"tool_call 0": b"{1}"}
    assert called(SPECIAL, "\n", *one, "\n", *one, dialect=dialect) == {"tool_call 0": b"{1}", "tool_call 1": b"{1}"}
    assert called(SPECIAL, "<|odd|>", *one, "So", dialect=dialect) == {"tool_call 0": b"{1}", "content": b"So"}


def test_special_tokens_within_a_call_are_its_text() -> None:
    tools = Tools(open="<|open|>tools<|sep|>", close="<|close|>tools<|sep|>")
    opened, closed = ("<|open|>", "tools", "<|sep|>"), ("<|close|>", "tools", "<|sep|>")
    texts = called(tools, *opened, "a", "<|sep|>", "b", "<|close|>", "call", *closed, "!")
    assert texts == {"tool_call 0": b"a<|sep|>b<|close|>call", "content": b"!"}


def test_harmony_names_the_tool_in_the_header() -> None:
    built, place = graph(DIALECTS["harmony"], tools=Tools(named={"f": None, "g": None}))
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.g <|constrain|>json<|message|>{"x":1}'
    walked = walk(built, place, (text + call).encode())
    assert [(each.channel, each.tool, each.text) for each in walked.segments] == [
        ("reasoning", "", b"hm"),
        ("tool_call", "g", b'{"x":1}'),
    ]


def test_a_call_that_is_required_comes_first_and_alone() -> None:
    built, place = graph(DIALECTS["opened think"], tools=Tools(open="<tool_call>", close="</tool_call>", required=True))
    with pytest.raises(Strayed):
        walk(built, place, b"so</think>Hello")
    walked = walk(built, place, b"so</think>\n<tool_call>{}</tool_call>\n")
    assert [(each.channel, each.text) for each in walked.segments] == [("reasoning", b"so"), ("tool_call", b"{}")]
    with pytest.raises(Strayed):
        walk(built, walked.place, b"Hello")

"""What may come next between thought and answer, over a real tokeniser with the marks as tokens and spelled out."""

import random
from collections.abc import Iterator
from functools import cache
from itertools import cycle, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from pomona.reasoning_formats import marks_of
from pomona.workers.channels.graph import ANSWER, THOUGHT
from pomona.workers.channels.guide import Guide
from pomona.workers.channels.spelling import Spelling
from pomona.workers.constraint.compiler import guide_of
from pomona.workers.constraint.error import ConstraintError
from pomona.workers.constraint.tokens import Tokens, tokens_of
from pomona.workers.messages import Constraint, Limits, Reasoning, Request, RequestId, Sampling, Tools
from pomona.workers.vocabulary import Vocabulary
from tests.support.formats import DIALECTS
from tests.workers.constraint.lexicons import allowed

BY_NAME = pytest.mark.parametrize("name", DIALECTS)
JSON = Constraint("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
ODD = ("</think>\n\n", "</think>{", "</think>x", "nk>{", "<|end|>{", "<|end|>x", "ok</think>\n", "<think>hm")
"""Tokens that run through a mark, into what may and what may not stand behind it."""


@cache
def lexicon(name: str, odd: bool = False) -> Tokens:
    dialect = DIALECTS[name]
    more = tuple(tag for tag in ODD if tag not in dialect.marks) if odd else ()
    with TemporaryDirectory() as folder:
        tokenizer = load_tokenizer(dialect._replace(tags=(*dialect.tags, *more)).build(Path(folder) / "m"))
    return tokens_of(tokenizer, Vocabulary(tokenizer))


@cache
def spelling(name: str, odd: bool = False) -> Spelling:
    return Spelling(lexicon(name, odd))


def guide(
    name: str,
    constraint: Constraint | None = JSON,
    *,
    odd: bool = False,
    budget: int | None = None,
    max_tokens: int = 500,
    begun: str | None = None,
    tools: Tools | None = None,
) -> Guide:
    dialect = DIALECTS[name]
    request = Request(
        id=RequestId("r"),
        model="m",
        prompt=(1,),
        sampling=Sampling(seed=0),
        limits=Limits(max_tokens=max_tokens),
        constraint=constraint,
        tools=tools,
        reasoning=Reasoning(
            format=dialect.format,
            suffix=dialect.suffix,
            begun=dialect.begun if begun is None else begun,
            budget=budget,
        ),
    )
    return guide_of(request, lexicon(name, odd), spelling(name, odd))


def may(one: Guide, token: int) -> bool:
    mask = one.masks()[0]
    return mask is None or allowed(mask, token)


def eos(name: str) -> int:
    return min(lexicon(name).eos)


class Texts(dict[str, str]):
    """Each channel's text."""

    def take(self, one: Guide, token: int) -> None:
        for segment in one.commit(token).segments:
            self[segment.channel] = self.get(segment.channel, "") + segment.text.decode()


def write(one: Guide, text: str, pick: random.Random | None = None, *, name: str, odd: bool = False) -> Texts:
    """Commit a text token by token, each as the masks allow; any of the fitting ones, or the longest."""
    pieces = lexicon(name, odd).pieces
    left, said = text.encode(), Texts()
    while left:
        fitting = [token for token, piece in enumerate(pieces) if piece and left.startswith(piece) and may(one, token)]
        assert fitting, f"nothing may stand before {left!r}"
        token = pick.choice(fitting) if pick else max(fitting, key=lambda each: len(pieces[each]))
        said.take(one, token)
        left = left[len(pieces[token]) :]
    return said


@BY_NAME
def test_a_thought_and_an_answer_in_any_tokens(name: str) -> None:
    text = DIALECTS[name].writes("I </thi think", '{"a": 17}')
    for seed in range(12):
        one = guide(name)
        said = write(one, text, random.Random(seed) if seed else None, name=name)
        assert said["reasoning"].rstrip("\n") == "I </thi think"
        assert said["content"] == '{"a": 17}'
        assert one.over or may(one, eos(name))


@BY_NAME
def test_the_answer_follows_its_grammar_from_its_first_byte(name: str) -> None:
    one = guide(name)
    text = DIALECTS[name].writes("hm", "")
    write(one, text, name=name)
    pieces = lexicon(name).pieces
    mask = one.masks()[0]
    assert mask is not None
    legal = {pieces[token] for token in range(len(pieces)) if allowed(mask, token)}
    assert b"{" in legal
    written = {piece for piece in legal if piece.strip()}
    assert all(b'{"a"'.startswith(piece) or b"<|channel>".startswith(piece) for piece in written), written
    assert name == "gemma" or b"<" not in written, "a thought may follow on a thought in gemma alone"


@BY_NAME
def test_an_end_is_legal_in_a_thought_and_behind_the_answer_alone(name: str) -> None:
    one = guide(name)
    before, behind = DIALECTS[name].thinks.split("{}")
    write(one, before, name=name)
    assert may(one, eos(name))
    write(one, "so" + behind, name=name)
    assert not may(one, eos(name))
    with pytest.raises(ConstraintError):
        one.commit(eos(name))
    write(one, '{"a":', name=name)
    assert not may(one, eos(name))
    write(one, "1}", name=name)
    assert one.over or may(one, eos(name))


@BY_NAME
def test_a_budget_forces_the_close_by_the_special_token_if_there_is_one(name: str) -> None:
    dialect = DIALECTS[name]
    for budget in (0, 1, 4):
        one = guide(name, budget=budget)
        before = dialect.thinks.split("{}")[0]
        if budget:
            write(one, before, name=name)
            for _ in range(budget - one.thought_tokens):
                write(one, "x", name=name)
        elif one._place.node != THOUGHT:
            continue
        closer = spelling(name).spell(marks_of(dialect.format, dialect.suffix).closer.encode())
        assert one.forced(99) == tuple(takewhile(lambda token: token not in lexicon(name).eos, closer))
        for token in closer:
            mask = one.masks()[0]
            assert mask is not None
            assert [each for each in range(lexicon(name).size) if allowed(mask, each)] == [token]
            one.commit(token)
        assert one._place.node != THOUGHT
        if name in ("harmony", "inkling", "muse"):
            again = next(each.text for each in marks_of(dialect.format).headers if each.opens == "thought")
            with pytest.raises(AssertionError, match="nothing may stand"):
                write(one, again, name=name)


@BY_NAME
def test_no_budget_closes_a_thought_where_no_room_is_left_for_an_answer(name: str) -> None:
    dialect = DIALECTS[name]
    before = dialect.thinks.split("{}")[0].rstrip("\n") + "x"
    marks = marks_of(dialect.format, dialect.suffix)
    closing = len(spelling(name).spell(marks.closer.encode()))
    counter = guide(name, budget=1)
    write(counter, before, name=name)
    count = 500 - counter._left
    for room, closes in ((closing, False), (closing + 1, True)):
        one = guide(name, budget=1, max_tokens=count + room)
        write(one, before, name=name)
        assert (one.masks()[0] is not None) == closes


def partial_closers(name: str) -> Iterator[str]:
    dialect = DIALECTS[name]
    closer = marks_of(dialect.format, dialect.suffix).closer
    return (closer[:size] for size in range(len(closer)))


@BY_NAME
def test_every_partial_closer_is_gone_on_with_and_nothing_is_written_twice(name: str) -> None:
    before = DIALECTS[name].thinks.split("{}")[0]
    for part in partial_closers(name):
        one = guide(name)
        said = write(one, f"{before}so {part}", name=name)
        plan = one.detour(eos(name))
        assert plan
        for token in plan:
            said.take(one, token)
        said.update({"content": write(one, '{"a": 1}', name=name)["content"]})
        assert said == {"reasoning": "so ", "content": '{"a": 1}'}


@pytest.mark.parametrize("name", ["inkling", "harmony", "muse", "gemma"])
def test_every_beginning_of_every_header_is_gone_on_with(name: str) -> None:
    dialect = DIALECTS[name]
    for header in marks_of(dialect.format).headers:
        for size in range(len(header.text) + 1):
            one = guide(name, begun=header.text[:size])
            text = header.text[size:]
            if header.opens == "thought":
                text += dialect.writes("hm", "").partition("hm")[2].join(("hm", ""))
            assert write(one, text + '{"a": 1}', name=name)["content"] == '{"a": 1}'


@pytest.mark.parametrize("name", ["inkling", "harmony", "muse"])
def test_without_thinking_a_committed_header_of_a_thought_leads_through_it(name: str) -> None:
    dialect = DIALECTS[name]
    thought = next(header.text for header in marks_of(dialect.format).headers if header.opens == "thought")
    for size in range(len(thought) + 1):
        one = guide(name, budget=0, begun=thought[:size])
        said = Texts()
        for _ in range(200):
            if one._place.node == ANSWER:
                break
            mask = one.masks()[0]
            assert mask is not None
            said.take(one, next(token for token in range(lexicon(name).size) if allowed(mask, token)))
        assert said == {}
        assert write(one, '{"a": 1}', name=name)["content"] == '{"a": 1}'


def test_tokens_that_run_through_a_mark_are_tried_before_they_are_drawn() -> None:
    one = guide("opened think", odd=True)
    tokens = lexicon("opened think", odd=True)
    by_text = {piece: token for token, piece in enumerate(tokens.pieces)}
    assert may(one, by_text[b"</think>{"])
    assert may(one, by_text[b"</think>\n\n"])
    assert may(one, by_text[b"ok</think>\n"])
    assert not may(one, by_text[b"</think>x"])
    assert may(one, by_text[b"nk>{"])  # text, as long as no mark is begun
    said = write(one, "so </thi", name="opened think", odd=True)
    assert may(one, by_text[b"nk>{"])
    said.take(one, by_text[b"nk>{"])
    assert said == {"reasoning": "so ", "content": "{"}
    for text in ('"a"', ":", "1}"):
        said["content"] += write(one, text, name="opened think", odd=True)["content"]
    assert said["content"] == '{"a":1}'


def test_hundreds_of_tokens_that_may_not_run_through_a_mark_are_all_refused() -> None:
    dialect = DIALECTS["spelled think"]._replace(tags=tuple(f"</think>{n}" for n in range(257)))
    with TemporaryDirectory() as folder:
        tokenizer = load_tokenizer(dialect.build(Path(folder) / "m"))
    tokens = tokens_of(tokenizer, Vocabulary(tokenizer))
    request = Request(
        id=RequestId("r"),
        model="m",
        prompt=(1,),
        sampling=Sampling(seed=0),
        limits=Limits(max_tokens=99),
        constraint=JSON,
        reasoning=Reasoning(format="think", begun="<think>"),
    )
    mask = guide_of(request, tokens, Spelling(tokens)).masks()[0]
    assert mask is not None
    crossing = [token for token, piece in enumerate(tokens.pieces) if piece.startswith(b"</think>")]
    assert len(crossing) == 257
    assert not any(allowed(mask, token) for token in crossing)


def test_a_grammar_that_begins_with_white_space_keeps_it() -> None:
    one = guide("opened think", Constraint("regex", r"\n\n\n?yes"))
    assert write(one, "so</think>\n\n\nyes", name="opened think") == {"reasoning": "so", "content": "\n\n\nyes"}


def test_text_that_begins_like_a_mark_may_be_the_answers() -> None:
    one = guide("free think", Constraint("regex", "<th[a-z]+>"))
    assert write(one, "<there>", name="free think") == {"content": "<there>"}


@pytest.mark.parametrize(("words", "tokens"), [("la ", 128), ("so it is, is it not, and then again, ", 1024)])
def test_loops_close_the_thought(words: str, tokens: int) -> None:
    one = guide("opened think", max_tokens=5000)
    circle = cycle(spelling("opened think").spell(words.encode()))
    while one.masks()[0] is None:
        one.commit(next(circle))
        assert one.thought_tokens <= tokens
    assert one.thought_tokens == tokens
    said = Texts()
    said.take(one, spelling("opened think").spell(b"</think>")[0])
    assert write(one, '{"a": 1}', name="opened think")["content"] == '{"a": 1}'


def test_lists_are_no_loops() -> None:
    one = guide("opened think", max_tokens=20_000)
    for number in range(300):
        assert one.masks()[0] is None
        write(one, f"{number}. A line of {number * 7919 % 1000}\n", name="opened think")


@BY_NAME
def test_drafts_are_masked_position_by_position_through_every_transition(name: str) -> None:
    """Masks behind drafts are those that the row has when it gets there, and illegal drafts are cut."""
    text = DIALECTS[name].writes("hm", '{"a": 1}').encode()
    tokens = lexicon(name)
    chain = spelling(name).spell(text)
    one = guide(name, max_tokens=len(chain) + 5)
    assert one.legal(chain) == len(chain)
    ahead = one.masks(chain[:-1])
    for place, token in enumerate(chain):
        here = one.masks()[0]
        there = ahead[place]
        assert (here is None) == (there is None)
        assert here is None or there is None or (here == there).all()
        one.commit(token)
    assert one.over or may(one, eos(name))
    other = guide(name)
    wrong = next(token for token, piece in enumerate(tokens.pieces) if piece == b"}")
    start = len(spelling(name).spell(DIALECTS[name].writes("hm", "").encode()))
    assert other.legal([*chain[:start], wrong, *chain[start:]]) == start
    assert other.legal([eos(name)]) == 0


def test_an_end_that_is_to_be_ignored_is_no_text_and_no_end() -> None:
    request = Request(
        id=RequestId("r"),
        model="m",
        prompt=(1,),
        sampling=Sampling(seed=0),
        limits=Limits(max_tokens=99, ignore_eos=True),
        reasoning=Reasoning(format="think", begun="<think>"),
    )
    one = guide_of(request, lexicon("opened think"), spelling("opened think"))
    said = Texts()
    for token in (eos("opened think"), *spelling("opened think").spell(b"so</think>ye")):
        said.take(one, token)
    assert not one.commit(eos("opened think")).segments
    said["content"] += write(one, "s", name="opened think")["content"]
    assert said == {"reasoning": "so", "content": "yes"}
    assert not one.over


@BY_NAME
def test_what_is_forced_is_what_the_masks_leave_in_every_part(name: str) -> None:
    one = guide(name, budget=3)
    stretches = 0
    for token in spelling(name).spell(DIALECTS[name].writes("hm", '{"a": 1}').encode()):
        forced = one.forced(64)
        for each, mask in zip(forced, one.masks(forced), strict=False):
            assert mask is not None
            assert [other for other in range(lexicon(name).size) if allowed(mask, other)] == [each]
        assert one.forced(1) == forced[:1]
        assert one.legal(forced) == len(forced)
        stretches += bool(forced)
        one.commit(token)
    assert stretches
    if not one.over:
        one.commit(eos(name))
    assert one.forced(64) == ()


def test_a_fork_goes_its_own_way() -> None:
    one = guide("opened think", budget=3)
    fork = one.fork()
    write(fork, "abc", name="opened think")
    assert fork.masks()[0] is not None
    assert one.masks()[0] is None
    assert one.thought_tokens == 0


CALL = Constraint(
    "json_schema",
    '{"type": "object", "properties": {"name": {"const": "f"}, "arguments": {"type": "object", '
    '"properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": false}}, '
    '"required": ["name", "arguments"], "additionalProperties": false}',
)


def calls(required: bool, parallel: bool = True) -> Tools:
    return Tools(open="<tool_call>", close="</tool_call>", required=required, parallel=parallel, constraint=CALL)


ONE_CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 3}}\n</tool_call>'


def test_a_required_call_is_the_answer_and_follows_its_grammar() -> None:
    name = "opened think"
    one = guide(name, None, tools=calls(required=True))
    said = write(one, f"so</think>\n{ONE_CALL}", name=name)
    assert said == {"reasoning": "so", "tool_call": '{"name": "f", "arguments": {"x": 3}}'}
    assert may(one, eos(name))
    other = guide("harmony", None, tools=Tools(named={"f": None, "g": None}, required=True))
    write(other, "<|channel|>analysis<|message|>hm", name="harmony")
    for token in other.detour(eos("harmony")):
        other.commit(token)
    assert write(other, "<|channel|>commentary to=functions.g<|message|>{", name="harmony") == {"tool_call": "{"}
    assert write(one, f"\n{ONE_CALL}", name=name)["tool_call"].startswith('{"name"')
    with pytest.raises(AssertionError, match="nothing may stand"):
        write(one, "Hello", name=name)


def test_one_call_at_most_where_no_more_are_wanted() -> None:
    name = "opened think"
    one = guide(name, None, tools=calls(required=True, parallel=False))
    write(one, f"so</think>{ONE_CALL}", name=name)
    assert may(one, eos(name))
    with pytest.raises(AssertionError, match="nothing may stand"):
        write(one, ONE_CALL, name=name)


def test_text_or_calls_where_the_model_may_choose() -> None:
    name = "opened think"
    one = guide(name, None, tools=calls(required=False))
    said = write(one, f"so</think>\nI call.{ONE_CALL}\nDone.", name=name)
    assert said == {
        "reasoning": "so",
        "content": "I call.Done.",
        "tool_call": '{"name": "f", "arguments": {"x": 3}}',
    }
    other = guide(name, None, tools=calls(required=False))
    write(other, "so</think><tool_call>", name=name)
    with pytest.raises(AssertionError, match="nothing may stand"):
        write(other, '{"name": "g"', name=name)


def test_a_form_and_calls_exclude_free_text() -> None:
    name = "opened think"
    for text, channel in ((ONE_CALL, "tool_call"), ('{"a": 1}', "content")):
        one = guide(name, tools=calls(required=False))
        assert set(write(one, f"so</think>{text}", name=name)) == {"reasoning", channel}
    one = guide(name, tools=calls(required=False))
    with pytest.raises(AssertionError, match="nothing may stand"):
        write(one, "so</think>Hello", name=name)


def test_harmonys_header_holds_the_tool_and_its_call_the_arguments() -> None:
    arguments = Constraint("json_schema", '{"type": "object", "properties": {"x": {"type": "integer"}}}')
    tools = Tools(named={"f": arguments, "g": None}, required=True)
    header = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    one = guide("harmony", None, tools=tools)
    said = write(one, header + '<|constrain|>json<|message|>{"x": 3}', name="harmony")
    assert said == {"reasoning": "hm", "tool_call": '{"x": 3}'}
    other: Any = guide("harmony", None, tools=tools)
    with pytest.raises(AssertionError, match="nothing may stand"):
        write(other, "<|channel|>final", name="harmony")

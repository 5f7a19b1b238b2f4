"""The state of one answer: it fails loudly, stays where it is when it refuses, and looks ahead without moving."""

import json
import random

import numpy as np
import pytest

from pomona.workers.constraint.error import ConstraintError
from pomona.workers.constraint.matcher import Matcher
from pomona.workers.constraint.tokens import Tokens
from pomona.workers.messages import Constraint
from tests.workers.constraint.groups import GROUPS
from tests.workers.constraint.lexicons import allowed, fitting, matcher, may_end, read, tokens, vocabulary

SPECIAL = [tokens().pieces[token].decode() for token in tokens().special]


def choice(*texts: str) -> Matcher:
    return matcher(Constraint("choice", json.dumps(texts)))


def test_a_grammar_that_is_none_is_an_error() -> None:
    for constraint in (
        Constraint("regex", "(a"),
        Constraint("lark", "start: ((("),
        Constraint("lark", 'other: "a"'),
        Constraint("json_schema", '{"type": "array", "uniqueItems": true}'),
        Constraint("json_schema", "false"),
    ):
        with pytest.raises(ConstraintError):
            matcher(constraint)


def test_an_error_is_one_short_line_and_tells_why() -> None:
    with pytest.raises(ConstraintError) as failure:
        matcher(Constraint("regex", "a" * 5000 + "("))
    assert "\n" not in str(failure.value)
    assert len(str(failure.value)) < 500
    assert "unclosed group" in str(failure.value)


def test_a_token_that_is_not_allowed_is_refused_and_changes_nothing() -> None:
    one = choice("abc", "abd")
    (a,) = tokens().encode(b"a")
    (z,) = tokens().encode(b"z")
    one.commit(a)
    before = one.masks()[0].copy()
    for wrong in (z, a, *tokens().eos, tokens().size, 10**6, -1):
        with pytest.raises(ConstraintError):
            one.commit(wrong)
    assert np.array_equal(one.masks()[0], before)
    assert read(one, "bd")
    assert one.over


def test_nothing_follows_what_is_over() -> None:
    one = choice("a")
    assert read(one, "a")
    assert one.over
    with pytest.raises(ConstraintError, match="complete"):
        one.commit(tokens().encode(b"a")[0])
    assert one.legal(tokens().encode(b"a")) == 0


def test_an_end_token_ends_a_complete_answer() -> None:
    one = matcher(Constraint("regex", "a+"))
    with pytest.raises(ConstraintError, match="not complete"):
        one.commit(min(tokens().eos))
    assert read(one, "aa")
    assert not one.over
    one.commit(min(tokens().eos))
    assert one.over


@pytest.mark.parametrize("name", GROUPS)
def test_masks_behind_drafts_are_those_that_come_when_the_drafts_are_committed(name: str) -> None:
    constraint, valid, _ = GROUPS[name]
    draw = random.Random(name)
    path: list[int] = []
    walker, left = matcher(constraint), draw.choice(valid).encode()
    while left and not walker.over:
        path.append(fitting(walker, left)[0])
        walker.commit(path[-1])
        left = left[len(vocabulary().bytes_of(path[-1])) :]
    ahead, step = matcher(constraint), matcher(constraint)
    start = draw.randrange(len(path))
    for token in path[:start]:
        ahead.commit(token)
        step.commit(token)
    drafts = path[start : start + 4]
    if walker.over:
        drafts = drafts[: len(path) - 1 - start]  # behind the last one there is nothing to draw
    masks = ahead.masks(drafts)
    assert len(masks) == 1 + len(drafts)
    for index, mask in enumerate(masks):
        assert np.array_equal(mask, step.masks()[0])
        if index < len(drafts):
            step.commit(drafts[index])
    assert np.array_equal(ahead.masks()[0], masks[0])


def test_drafts_are_legal_up_to_the_first_one_that_is_not() -> None:
    one = choice("abcd", "abxy")
    a, b, c, z = (tokens().encode(text)[0] for text in (b"a", b"b", b"c", b"z"))
    assert one.legal([a, b, c]) == 3
    assert one.legal([a, z, b]) == 1
    assert one.legal([z]) == 0
    assert one.legal([]) == 0
    assert one.legal([a, min(tokens().eos)]) == 1
    assert one.legal([tokens().size + 5, a]) == 0
    with pytest.raises(ConstraintError):
        one.masks([a, z])
    assert one.legal([a, b]) == 2


def test_every_end_token_is_allowed_where_the_answer_is_complete_and_none_elsewhere() -> None:
    ends = frozenset({0, 2, tokens().size + 40})
    both = Tokens(vocabulary(), ends, lambda text: tokens().encode(text.encode()))
    one = Matcher(both, "start: /a+/")
    assert not [token for token in ends if allowed(one.masks()[0], token)]
    one.commit(tokens().encode(b"a")[0])
    assert [token for token in ends if not allowed(one.masks()[0], token)] == []


def test_a_model_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="end-of-sequence"):
        Tokens(vocabulary(), frozenset(), lambda text: [])


def test_any_token_is_any_text_and_no_end_before_it() -> None:
    one = matcher(Constraint("lark", "start: <[*]>"))
    assert not may_end(one)
    assert read(one, "a")


@pytest.mark.parametrize("name", GROUPS)
def test_what_is_forced_is_all_that_the_masks_leave(name: str) -> None:
    constraint, valid, _ = GROUPS[name]
    for text in valid[:6]:
        one, left = matcher(constraint), text.encode()
        while left and not one.over:
            before = one.masks()[0].copy()
            forced = one.forced(64)
            assert one.forced(1) == forced[:1]
            assert np.array_equal(one.masks()[0], before)
            assert one.legal(forced) == len(forced)
            for token, mask in zip(forced, one.masks(forced), strict=False):
                left_over = [each for each in range(tokens().size) if allowed(mask, each)]
                assert len(left_over) == 1
                assert left_over == [token] or any(name in text for name in SPECIAL)
            token = fitting(one, left)[0]
            one.commit(token)
            left = left[len(vocabulary().bytes_of(token)) :]
        assert not left


def test_a_stretch_is_forced_up_to_a_choice_or_the_end() -> None:
    one = choice("abcdef", "abcxyz")
    assert vocabulary().join(one.forced(64)) == b"abc"
    assert read(one, "abc")
    assert one.forced(64) == ()
    assert read(one, "d")
    assert vocabulary().join(one.forced(64)) == b"ef"
    assert len(one.forced(1)) == 1
    assert read(one, "ef")
    assert one.forced(64) == ()


def test_nothing_is_forced_where_the_answer_may_end() -> None:
    one = choice("ab", "abcd")
    assert read(one, "ab")
    assert one.complete
    assert one.forced(64) == ()
    assert read(one, "c")
    assert vocabulary().join(one.forced(64)) == b"d"

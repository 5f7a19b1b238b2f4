"""What the masks of a grammar let through, token by token and whatever the tokens are."""

import random

import pytest

from pomona.workers.messages import Constraint
from tests.workers.constraint.groups import GROUPS
from tests.workers.constraint.lexicons import accepts, allowed, fitting, matcher, may_end, read, tokens, vocabulary


@pytest.mark.parametrize("name", GROUPS)
def test_valid_answers_are_let_through_and_invalid_ones_are_not(name: str) -> None:
    constraint, valid, invalid = GROUPS[name]
    assert [text for text in valid if not accepts(constraint, text)] == []
    assert [text for text in invalid if accepts(constraint, text)] == []


def test_there_are_more_than_forty_groups() -> None:
    assert len(GROUPS) >= 42


@pytest.mark.parametrize("name", GROUPS)
def test_a_text_is_let_through_however_it_is_cut_into_tokens(name: str) -> None:
    constraint, valid, invalid = GROUPS[name]
    draw = random.Random(name)
    for _ in range(3):
        assert [text for text in valid if not accepts(constraint, text, draw.choice)] == []
        assert [text for text in invalid if accepts(constraint, text, draw.choice)] == []


@pytest.mark.parametrize("name", GROUPS)
def test_the_masks_say_of_every_token_what_the_grammar_does(name: str) -> None:
    """At a drawn place of each answer. Where the text is forced, of all ways to write it one token is let through."""
    constraint, valid, _ = GROUPS[name]
    draw = random.Random(name)
    one = matcher(constraint)
    left = draw.choice(valid).encode()
    for _ in range(draw.randrange(4)):
        if len(left) > 1:
            token = fitting(one, left)[0]
            one.commit(token)
            left = left[len(vocabulary().bytes_of(token)) :]
    if one.over:
        return
    mask = one.masks()[0]
    let = {token for token in range(32 * len(mask)) if allowed(mask, token)} - tokens().eos
    taken = {token for token in range(tokens().size) if one.legal([token]) == 1}
    assert let == taken or (len(let) == 1 and let < taken and not may_end(one))
    assert {token for token in tokens().eos if allowed(mask, token)} in (set(), set(tokens().eos))


def test_special_tokens_are_no_text_though_a_grammar_takes_their_names() -> None:
    one = matcher(Constraint("regex", "(?s:.*)"))
    mask = one.masks()[0]
    assert [token for token in vocabulary().special if allowed(mask, token) and token not in tokens().eos] == []
    assert read(one, "<|im_start|><|endoftext|>")
    assert len(one_by_one("<|im_start|>")) > 1


def one_by_one(text: str) -> list[int]:
    return tokens().encode(text.encode())


def test_ids_that_stand_for_nothing_are_never_allowed() -> None:
    mask = matcher(Constraint("regex", "(?s:.*)")).masks()[0]
    holes = [token for token in range(32 * len(mask)) if token >= tokens().size or not vocabulary().name_of(token)]
    assert [token for token in holes if allowed(mask, token)] == []

"""A head that drifts in a known way, and one that does not: what is fitted on some answers is judged on others."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache

from pomona.workers.models.load import load
from pomona.workers.speculation.answers import Answer, Depth, Listener, follow, reached_pairs, shares, windows
from pomona.workers.speculation.corrector import Corrector, identity
from pomona.workers.speculation.fit_corrector import Fitting, split
from pomona.workers.speculation.mtp_head import MtpHead, load_mtp_head
from tests.workers.speculation.drafts import continuation
from tests.workers.speculation.heads import HIDDEN, any_tokens, known, orbit, random_pair
from tests.workers.speculation.test_corrector import account

NEVER: frozenset[int] = frozenset()


def opened(folder: Path) -> tuple[Any, MtpHead]:
    model, _ = load(folder)
    head = load_mtp_head(folder, model)
    assert head is not None
    return model, head


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, MtpHead]:
    return opened(known(tmp_path_factory.mktemp("drifting") / "model", "hidden", drifts=True))


@pytest.fixture(scope="module")
def random_one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, MtpHead]:
    return opened(random_pair(tmp_path_factory.mktemp("random") / "model"))


def test_an_answer_is_greedy_and_keeps_what_the_head_is_given(random_one: tuple[Any, MtpHead]) -> None:
    model, head = random_one
    prompt = any_tokens(1, 7)
    answer = Listener(model, head, NEVER).answer(prompt, 5)
    assert (answer.begin, tuple(answer.tokens)) == (7, (*prompt, *continuation(model, prompt, 5)))
    whole = model.model(mx.array([answer.tokens[:-1]]))[0]
    assert mx.allclose(answer.hidden, whole, atol=1e-4).item()


def test_an_answer_ends_where_the_model_ends(drifting: tuple[Any, MtpHead]) -> None:
    answer = Listener(*drifting, frozenset({orbit(3, 5)[-1]})).answer(orbit(3, 1), 20)
    assert answer.tokens == orbit(3, 5)
    with pytest.raises(ValueError, match="without tokens"):
        Listener(*drifting, NEVER).answer([], 20)


def answer_of(tokens: int, begin: int) -> Answer:
    return Answer(list(range(tokens)), begin, mx.zeros((tokens - 1, 1)))


def test_windows_have_all_their_tokens_and_are_spread_out() -> None:
    assert windows(answer_of(12, 5), 3, 99) == [4, 5, 6, 7]
    assert windows(answer_of(12, 5), 3, 2) == [4, 6]
    assert windows(answer_of(12, 1), 3, 3) == [1, 4, 7]
    assert windows(answer_of(8, 5), 3, 9) == []


def test_guesses_follow_from_the_true_history_and_from_each_other(random_one: tuple[Any, MtpHead]) -> None:
    model, head = random_one
    answer = Listener(model, head, NEVER).answer(any_tokens(2, 6), 12)
    places = windows(answer, 3, 4)
    shift = Corrector([identity(64)._replace(bias=np.full(1, 0.3, np.float32))], account(size=64))
    for corrector in (None, shift):
        found = follow(head, answer, places, 3, corrector)
        for window, place in enumerate(places):
            cache, reached = KVCache(), True
            given, fed = answer.hidden[None, : place + 1], answer.tokens[1 : place + 2]
            for depth, each in enumerate(found, 1):
                made = head(given, mx.array([fed]), cache)
                given, fed = head.of(made)[:, -1:], [answer.tokens[place + depth + 1]]
                np.testing.assert_allclose(each.guessed[window], np.array(given[0, 0]), atol=1e-4)
                np.testing.assert_array_equal(each.true[window], np.array(answer.hidden[place + depth]))
                right = int(mx.argmax(head.logits(made)[0, -1])) == fed[0]
                assert (each.reached[window], each.right[window]) == (reached, right)
                reached = reached and right
                given = corrector(given, depth) if corrector is not None and depth == 1 else given


def test_shares_are_of_the_drafts_that_were_reached() -> None:
    def depth(reached: list[int], right: list[int]) -> Depth:
        nothing = np.zeros((len(reached), 1), np.float32)
        return Depth(nothing, nothing, np.array(reached, np.bool_), np.array(right, np.bool_))

    one = [depth([1, 1], [1, 0]), depth([1, 0], [0, 1]), depth([0, 0], [1, 1])]
    other = [depth([1, 1], [1, 1]), depth([1, 1], [1, 0]), depth([1, 0], [0, 0])]
    assert shares([one, other]) == (3 / 4, 1 / 3, 0.0)


def test_only_guesses_that_a_round_would_come_to_are_fitted_on() -> None:
    states = np.arange(6, dtype=np.float32).reshape(3, 2)
    reached = np.array([True, False, True])
    one = Depth(states, states + 10, reached, reached)
    other = Depth(states + 20, states + 30, ~reached, reached)
    guessed, true = reached_pairs([one, other])
    assert guessed.tolist() == [[0, 1], [4, 5], [22, 23]]
    assert true.tolist() == [[10, 11], [14, 15], [32, 33]]


def test_prompts_are_split_by_what_they_are() -> None:
    answers = [Answer([*any_tokens(seed, 4), 9], 4, mx.zeros((4, 1))) for seed in range(40)]
    parts = split(answers)
    assert len(parts.train) + len(parts.held_out) == 40
    assert 20 < len(parts.train) < 39
    reversed_parts = split(answers[::-1])
    assert [answer.tokens for answer in reversed_parts.held_out[::-1]] == [each.tokens for each in parts.held_out]
    twice = split([*answers, *answers])
    assert len(twice.held_out) == 2 * len(parts.held_out)


def test_neither_side_of_a_split_is_empty() -> None:
    answers = [Answer([*any_tokens(seed, 4), 9], 4, mx.zeros((4, 1))) for seed in range(40)]
    parts = split(answers)
    for side in parts:
        again = split(side[:3])
        assert again.train
        assert again.held_out
    with pytest.raises(ValueError, match="1 prompts cannot be split"):
        split([answers[0], answers[0]])


@pytest.fixture(scope="module")
def orbits(drifting: tuple[Any, MtpHead]) -> list[Answer]:
    listener = Listener(*drifting, NEVER)
    return [listener.answer(orbit(start, 2), 10) for start in range(3, 18, 3)]


@pytest.mark.parametrize("kinds", [("c1",), ("c0", "c1+c2")])
def test_a_drift_is_taken_back_on_prompts_that_were_not_fitted_on(
    drifting: tuple[Any, MtpHead], orbits: list[Answer], kinds: Any
) -> None:
    _, head = drifting
    told: list[str] = []
    corrector = Fitting(head, orbits, depth=3, rank=4).run(kinds, told.append)
    told_of = corrector.account
    assert told_of.before[0] == told_of.after[0] > 0.9  # the first draft has nothing to be corrected
    assert told_of.before[2] < 0.7
    assert told_of.after[1:] == (1, 1)
    assert (corrector.depths, corrector.pays, told_of.size, told_of.hidden) == (2, True, HIDDEN, "post")
    assert told_of.kind in ("c1", "c1+c2")
    assert told == [*(f"fitting {kind}" for kind in kinds), "choosing"]


def test_where_there_is_no_drift_nothing_is_gained(tmp_path: Path) -> None:
    model, head = opened(known(tmp_path / "model", "hidden"))
    listener = Listener(model, head, NEVER)
    answers = [listener.answer(orbit(start, 2), 8) for start in (3, 6, 9)]
    corrector = Fitting(head, answers, depth=3, rank=4).run(("c1",))
    assert corrector.account.before == (1, 1, 1)
    assert not corrector.pays


def test_answers_that_are_too_short_are_not_enough(drifting: tuple[Any, MtpHead]) -> None:
    listener = Listener(*drifting, NEVER)
    answers = [listener.answer(orbit(start, 2), 2) for start in (3, 6, 9)]
    with pytest.raises(ValueError, match="0 prompts cannot be split"):
        Fitting(drifting[1], answers, depth=3, rank=4)

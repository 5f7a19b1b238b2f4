from random import Random

import pytest

from pomona.config import Method
from pomona.workers.messages import RequestId
from pomona.workers.speculation.acceptance import (
    HALF_LIFE,
    PRIOR_BY_DEPTH,
    PRIOR_BY_LENGTH,
    ROW_HALF_LIFE,
    Acceptance,
    Outcome,
    classes_of,
)

A, B = RequestId("a"), RequestId("b")


def told(
    chances: dict[int, float], key: RequestId = A, strength: int = 0, rounds: int = 400, at: int = 0
) -> Acceptance:
    """Rounds of three drafts, accepted with the chance of their class."""
    acceptance = Acceptance()
    tell(acceptance, chances, key, strength, rounds, at)
    return acceptance


def tell(
    acceptance: Acceptance, chances: dict[int, float], key: RequestId, strength: int, rounds: int, at: int = 0
) -> None:
    random = Random(rounds)
    for _ in range(rounds):
        accepted = 0
        while accepted < 3 and random.random() < chances[classes_of(strength, 3)[accepted]]:
            accepted += 1
        acceptance.note(key, Outcome(method(strength), strength, 3, accepted), at)


def method(strength: int) -> Method:
    return "ngram" if strength else "mtp"


def test_before_any_test_a_method_is_hoped_to_work() -> None:
    assert Acceptance().chances(A, "mtp", 0, 2, 0) == [PRIOR_BY_DEPTH] * 2
    assert Acceptance().chances(A, "ngram", 2, 4, 0) == pytest.approx(PRIOR_BY_LENGTH[:4])


def test_classes_are_lengths_of_matches_or_depths() -> None:
    assert classes_of(0, 3) == (-1, -2, -3)
    assert classes_of(2, 13) == (0, 1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 6)
    assert classes_of(27, 3) == (7, 8, 8)
    assert classes_of(500, 1) == (8,)


def test_each_depth_is_learned_by_itself() -> None:
    chances = told({-1: 0.8, -2: 0.5, -3: 0.2}).chances(B, "mtp", 0, 3, 0)
    assert chances == pytest.approx([0.8, 0.5, 0.2], abs=0.12)


def test_only_tested_drafts_count() -> None:
    """Behind a refusal nothing was tested; behind the row's end nothing is drafted."""
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.note(A, Outcome("mtp", 0, 3, 0), 0)
    assert acceptance.chances(B, "mtp", 0, 3, 0) == pytest.approx(
        [PRIOR_BY_DEPTH * 4 / (4 + 44.3)] + [0.6] * 2, abs=0.01
    )
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.note(A, Outcome("mtp", 0, 2, 2), 0)
    first, second, third = acceptance.chances(B, "mtp", 0, 3, 0)
    assert first == second == pytest.approx(1 - 0.4 * 4 / (4 + 44.3), abs=0.01)
    assert third == PRIOR_BY_DEPTH


def test_a_draft_behind_accepted_ones_is_one_of_a_longer_match() -> None:
    acceptance = told({0: 0.3, 1: 0.5, 2: 0.9}, strength=2, rounds=1500)
    assert acceptance.chances(B, "ngram", 2, 3, 0) == pytest.approx([0.3, 0.5, 0.9], abs=0.1)
    assert acceptance.chances(B, "ngram", 4, 1, 0)[0] == acceptance.chances(B, "ngram", 2, 3, 0)[2]


def test_methods_are_told_apart() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.note(A, Outcome("mtp", 0, 1, 0), 0)
    assert acceptance.chances(A, "draft", 0, 1, 0) == [PRIOR_BY_DEPTH]


def test_a_row_begins_at_its_methods_average_and_goes_its_own_way() -> None:
    acceptance = told({-1: 0.5, -2: 0.5, -3: 0.5})
    average = acceptance.chances(B, "mtp", 0, 1, 0)[0]
    assert average == pytest.approx(0.5, abs=0.1)
    for _ in range(10):
        acceptance.note(B, Outcome("mtp", 0, 3, 3), 0)
    assert min(acceptance.chances(B, "mtp", 0, 3, 0)) > 0.85
    assert acceptance.chances(RequestId("c"), "mtp", 0, 1, 0)[0] < 0.65


def test_a_row_that_is_refused_is_soon_believed() -> None:
    acceptance = told({-1: 0.8, -2: 0.8, -3: 0.8})
    for _ in range(12):
        acceptance.note(B, Outcome("mtp", 0, 3, 0), 0)
    assert acceptance.chances(B, "mtp", 0, 1, 0)[0] < 0.3


def test_what_a_row_was_like_fades() -> None:
    acceptance = told({-1: 0.8, -2: 0.8, -3: 0.8})
    for _ in range(30):
        acceptance.note(B, Outcome("mtp", 0, 1, 0), 0)
    then = acceptance.chances(B, "mtp", 0, 1, 0)[0]
    average = acceptance.chances(A, "mtp", 0, 1, 0)[0]
    later = acceptance.chances(B, "mtp", 0, 1, 6 * ROW_HALF_LIFE)[0]
    assert then < 0.2 < average - 0.15 < later


def test_what_a_method_was_like_fades() -> None:
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.note(A, Outcome("mtp", 0, 1, 0), 0)
    assert acceptance.chances(B, "mtp", 0, 1, 0)[0] < 0.05
    assert acceptance.chances(B, "mtp", 0, 1, 12 * HALF_LIFE)[0] > 0.55


def test_a_change_is_followed() -> None:
    acceptance = told({-1: 0.9, -2: 0.9, -3: 0.9})
    tell(acceptance, {-1: 0.1, -2: 0.1, -3: 0.1}, B, 0, 400)
    assert acceptance.chances(B, "mtp", 0, 1, 0)[0] < 0.2
    assert acceptance.chances(RequestId("c"), "mtp", 0, 1, 0)[0] < 0.3


def test_hope_shrinks_with_the_rows_tests_and_comes_back() -> None:
    acceptance = Acceptance()
    assert acceptance.hope(A, "mtp", 0) == 1
    hopes = []
    for _ in range(60):
        acceptance.note(A, Outcome("mtp", 0, 1, 0), 0)
        hopes.append(acceptance.hope(A, "mtp", 0))
    assert hopes == sorted(hopes, reverse=True)
    assert hopes[3] < 1
    assert hopes[-1] < 0.35
    assert acceptance.hope(A, "mtp", 8 * ROW_HALF_LIFE) == 1
    assert acceptance.hope(A, "draft", 0) == acceptance.hope(B, "mtp", 0) == 1


def test_a_forgotten_row_begins_at_the_average_again() -> None:
    acceptance = told({-1: 0.8, -2: 0.8, -3: 0.8})
    for _ in range(12):
        acceptance.note(B, Outcome("mtp", 0, 1, 0), 0)
    acceptance.forget(B)
    acceptance.forget(RequestId("unknown"))
    assert acceptance.chances(B, "mtp", 0, 1, 0) == acceptance.chances(RequestId("c"), "mtp", 0, 1, 0)
    assert acceptance.hope(B, "mtp", 0) == 1
    assert acceptance.hope(A, "mtp", 0) < 0.4


def test_no_chance_is_certain() -> None:
    acceptance = Acceptance()
    for _ in range(300):
        acceptance.note(A, Outcome("mtp", 0, 2, 1), 0)
    first, second = acceptance.chances(A, "mtp", 0, 2, 0)
    assert 0.9 < first <= 0.98
    assert 0.01 <= second < 0.1

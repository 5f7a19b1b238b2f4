from random import Random

import pytest

from pomona.workers.speculation.verify_cost import DOUBT, HALF_LIFE, VerifyCost


def seen(*shapes: tuple[int, int, float], times: int = 4) -> VerifyCost:
    cost = VerifyCost()
    for _ in range(times):
        for shape in shapes:
            cost.observe(*shape)
    return cost


def test_a_shape_costs_what_it_took() -> None:
    cost = seen((1, 1, 0.06), (1, 2, 0.075), (4, 1, 0.12))
    assert cost.seconds(1, 1) == pytest.approx(0.06, rel=0.03)
    assert cost.seconds(1, 2) == pytest.approx(0.075, rel=0.03)
    assert cost.seconds(4, 1) == pytest.approx(0.12, rel=0.03)
    assert (cost.known(1, 2), cost.known(2, 1)) == (True, False)


def test_from_one_plain_step_alone_wider_forwards_are_thought_to_cost_somewhat_more() -> None:
    cost = seen((4, 1, 0.1), times=1)
    assert cost.seconds(4, 2) == pytest.approx(0.125)
    assert cost.seconds(4, 3) == pytest.approx(0.15)


def test_a_plain_step_is_guessed_from_wider_ones() -> None:
    assert seen((4, 3, 0.15)).seconds(4, 1) == pytest.approx(0.1)


def test_before_anything_was_seen_costs_are_in_proportion() -> None:
    cost = VerifyCost()
    assert cost.seconds(2, 2) / cost.seconds(2, 1) == pytest.approx(1.75 / 1.25)


def test_a_width_between_known_ones_lies_between_them() -> None:
    assert seen((1, 2, 0.06), (1, 4, 0.10)).seconds(1, 3) == pytest.approx(0.08)


def test_rows_that_never_ran_cost_what_as_many_tokens_did() -> None:
    cost = seen((1, 1, 0.06), (1, 4, 0.12), (1, 8, 0.16))
    assert cost.seconds(4, 1) == pytest.approx(0.12)
    assert cost.seconds(4, 2) == pytest.approx(0.16)


def test_rows_that_ran_keep_their_proportion() -> None:
    """Eight rows cost twice what one row of eight tokens did, so their second token costs as much more as there."""
    cost = seen((1, 8, 0.1), (1, 16, 0.14), (8, 1, 0.2))
    assert cost.seconds(8, 2) == pytest.approx(0.2 * 0.14 / 0.1, rel=0.05)


def test_the_first_forward_of_a_shape_may_be_slow() -> None:
    cost = seen((1, 1, 0.06))
    cost.observe(1, 3, 2.0)
    assert cost.seconds(1, 3) > 0.8
    cost.observe(1, 3, 0.08)
    cost.observe(1, 3, 0.3)
    assert cost.seconds(1, 3) == pytest.approx(0.08, rel=0.03)
    assert cost.seconds(1, 1) == pytest.approx(0.06, rel=0.03)


def test_a_first_forward_that_was_slow_is_not_believed_for_ever() -> None:
    cost = seen((1, 1, 0.06))
    cost.observe(1, 3, 2.0)
    for _ in range(6 * HALF_LIFE):
        cost.observe(1, 1, 0.06)
    assert cost.seconds(1, 3) < 0.13


def test_one_disturbed_forward_changes_little() -> None:
    cost = seen((1, 1, 0.06), times=40)
    cost.observe(1, 1, 60.0)
    assert cost.seconds(1, 1) < 0.06 * 1.06


def test_noise_is_averaged() -> None:
    random, cost = Random(1), VerifyCost()
    for _ in range(300):
        for width, seconds in ((1, 0.06), (2, 0.07)):
            cost.observe(1, width, seconds * random.lognormvariate(0, 0.15))
    assert cost.seconds(1, 2) / cost.seconds(1, 1) == pytest.approx(7 / 6, rel=0.06)
    assert cost.seconds(1, 1) == pytest.approx(0.06, rel=0.1)


def test_a_slower_machine_slows_what_was_not_seen_since_as_well() -> None:
    cost = seen((1, 1, 0.06), (1, 3, 0.09), times=40)
    for _ in range(150):
        cost.observe(1, 1, 0.12)
    assert cost.seconds(1, 1) == pytest.approx(0.12, rel=0.02)
    assert 0.145 < cost.seconds(1, 3) < 0.185


def test_a_shape_alone_that_changed_is_learned_when_it_is_seen() -> None:
    cost = seen((1, 1, 0.06), (1, 3, 0.09), times=400)
    for _ in range(60):
        cost.observe(1, 1, 0.06)
        cost.observe(1, 3, 0.18)
    assert cost.seconds(1, 3) / cost.seconds(1, 1) == pytest.approx(3, rel=0.12)


def test_what_was_seen_long_ago_yields_to_what_is_seen_now() -> None:
    old, fresh = seen((1, 1, 0.06), (1, 3, 0.09), times=40), seen((1, 1, 0.06), (1, 3, 0.09), times=40)
    for _ in range(4 * HALF_LIFE):
        old.observe(1, 1, 0.06)
    for cost in (old, fresh):
        cost.observe(1, 3, 0.12)
    assert old.seconds(1, 3) > 1.05 * fresh.seconds(1, 3)


def test_what_a_forward_took_counts_at_once() -> None:
    cost = seen((1, 1, 0.06), (1, 2, 0.07))
    before = cost.seconds(1, 2)
    cost.observe(1, 2, 0.15)
    assert cost.seconds(1, 2) > 1.1 * before


def test_a_guess_is_made_anew_when_its_neighbours_are_seen() -> None:
    cost = seen((1, 1, 0.06))
    cost.seconds(1, 3)
    cost.observe(1, 2, 0.1)
    cost.observe(1, 4, 0.2)
    assert cost.seconds(1, 3) == pytest.approx(0.15)


def test_doubt_shrinks_with_forwards_and_grows_with_time() -> None:
    cost = seen((1, 1, 0.06))
    assert cost.least_seconds(1, 2) == pytest.approx(cost.seconds(1, 2) * (1 - DOUBT))
    doubts = []
    for times in (1, 10, 0):
        for _ in range(times):
            cost.observe(1, 2, 0.07)
        if not times:
            for _ in range(6 * HALF_LIFE):
                cost.observe(1, 1, 0.06)
        doubts.append(1 - cost.least_seconds(1, 2) / cost.seconds(1, 2))
    once, often, long_ago = doubts
    assert often < 0.07 < once < DOUBT
    assert 0.2 < long_ago < DOUBT


def test_a_forward_that_took_no_time_says_nothing() -> None:
    cost = seen((1, 1, 0.06))
    cost.observe(1, 2, 0.0)
    assert not cost.known(1, 2)

import pytest

from pomona.workers.cost import PrefillCost


def observed(fixed: float, slope: float, *sizes: int) -> PrefillCost:
    cost = PrefillCost()
    for size in sizes:
        cost.observe(size, fixed + slope * size)
    return cost


def test_a_fixed_part_and_a_part_for_each_token_are_told_apart() -> None:
    fixed, slope = observed(0.05, 0.002, 16, 64, 200).line()
    assert (fixed, slope) == (pytest.approx(0.05), pytest.approx(0.002))


def test_forwards_of_one_size_say_what_a_token_costs_on_average() -> None:
    assert observed(0.05, 0.002, 50, 50, 50).line() == (0.0, pytest.approx(0.003))


def test_a_line_that_makes_no_sense_is_none() -> None:
    """Noise may make large forwards look cheaper than small ones."""
    cost = PrefillCost()
    cost.observe(10, 1.0)
    cost.observe(100, 0.5)
    fixed, slope = cost.line()
    assert fixed == 0
    assert slope > 0


def test_what_fits_into_a_time_is_what_the_line_says() -> None:
    cost = observed(0.05, 0.002, 16, 64, 200)
    assert cost.tokens_within(0.05 + 0.002 * 100.5) == 100
    assert cost.tokens_within(0.04) == 0
    assert cost.tokens_within(-1.0) == 0


def test_before_anything_is_known_a_hundred_tokens_take_a_second() -> None:
    assert PrefillCost().tokens_within(0.5) == 50


def test_newer_forwards_weigh_more() -> None:
    cost = observed(0.0, 0.01, *[50] * 40)
    for _ in range(40):
        cost.observe(50, 0.5 / 4)
    assert cost.line()[1] == pytest.approx(0.0025, rel=0.05)


def test_many_forwards_of_one_size_do_not_make_the_others_forgotten() -> None:
    cost = observed(0.05, 0.002, 16, 200, *[70] * 500)
    assert cost.line() == (pytest.approx(0.05, rel=0.01), pytest.approx(0.002, rel=0.01))


def test_what_a_size_costs_today_counts_more_than_what_another_cost_long_ago() -> None:
    cost = observed(0.05, 0.002, 16, 200)
    for _ in range(100):
        cost.observe(70, 2 * (0.05 + 0.002 * 70))
    fixed, slope = cost.line()
    assert fixed + slope * 70 == pytest.approx(2 * (0.05 + 0.002 * 70), rel=0.15)


def test_what_deep_forwards_take_beyond_the_line_shortens_the_next_deep_ones_alone() -> None:
    cost = observed(0.05, 0.002, 16, 64, 200)
    line = cost.line()
    cost.observe(100, 0.05 + 0.2 + 100 * 1000 * 2e-6, depth=1000)
    assert cost.line() == line
    assert cost.tokens_within(0.05 + 0.2001) == 100
    assert cost.tokens_within(0.05 + 0.4001, depth=1000) == 100
    assert cost.tokens_within(0.05 + 0.6001, depth=2000) == 100
    cost.observe(100, 0.01, depth=1000)  # faster than the line: attention costs nothing, and never less
    cost.observe(100, 0.01, depth=1000)
    assert 100 < cost.tokens_within(0.05 + 0.4001, depth=1000) <= 200


def test_a_forward_behind_few_tokens_belongs_to_the_line() -> None:
    cost = PrefillCost()
    cost.observe(100, 0.4, depth=100)
    assert cost.line() == (0.0, pytest.approx(0.004))
    assert cost.tokens_within(0.4001, depth=10_000) == 100

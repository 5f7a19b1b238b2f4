from itertools import combinations, pairwise
from math import log2

from hypothesis import given
from hypothesis import strategies as st

from pomona.workers.length_groups import Group, group_rows

OVERHEAD = 192

lengths = st.lists(st.integers(0, 9000) | st.integers(0, 300), min_size=1, max_size=24)


def padded(groups: list[Group]) -> int:
    return sum((group.stop - group.start) * group.reach for group in groups)


def least_cost(rows: list[int], overhead: int) -> int:
    """Every way to cut the rows into runs."""
    ways = ([0, *cuts, len(rows)] for count in range(len(rows)) for cuts in combinations(range(1, len(rows)), count))
    return min(sum(overhead + (b - a) * max(rows[a:b]) for a, b in pairwise(way)) for way in ways)


@given(lengths)
def test_groups_are_neighbours_and_reach_to_the_longest_of_them(rows: list[int]) -> None:
    groups = group_rows(rows, OVERHEAD)
    assert [groups[0].start, *(group.stop for group in groups)] == [
        *(group.start for group in groups),
        len(rows),
    ]
    for group in groups:
        own = rows[group.start : group.stop]
        assert own
        assert (group.reach, group.level) == (max(own), len(set(own)) == 1)


@given(lengths)
def test_rows_are_padded_by_less_than_a_calls_worth_each_on_average(rows: list[int]) -> None:
    groups = group_rows(rows, OVERHEAD)
    assert padded(groups) <= sum(rows) + (len(rows) - len(groups)) * OVERHEAD
    for group in groups:
        own = rows[group.start : group.stop]
        assert len(own) * group.reach - sum(own) <= (len(own) - 1) * OVERHEAD


@given(lengths)
def test_rows_in_order_of_length_are_padded_to_twice_their_tokens_at_most(rows: list[int]) -> None:
    rows = sorted(length + 1 for length in rows)
    doublings = 1 + log2(rows[-1] / rows[0])
    assert padded(group_rows(rows, OVERHEAD)) <= 2 * sum(rows) + doublings * OVERHEAD


@given(st.lists(st.integers(0, 400), min_size=1, max_size=8), st.integers(0, 300))
def test_no_other_cut_costs_less(rows: list[int], overhead: int) -> None:
    groups = group_rows(rows, overhead)
    assert len(groups) * overhead + padded(groups) == least_cost(rows, overhead)


@given(lengths, st.integers(0, 5000))
def test_what_all_rows_grow_by_changes_no_group(rows: list[int], more: int) -> None:
    grown = group_rows([length + more for length in rows], OVERHEAD)
    assert grown == [group._replace(reach=group.reach + more) for group in group_rows(rows, OVERHEAD)]


def test_rows_of_one_length_are_one_group_even_where_a_call_costs_nothing() -> None:
    assert group_rows([7] * 5, 0) == [Group(0, 5, 7, True)]
    assert group_rows([7], 0) == [Group(0, 1, 7, True)]
    assert group_rows([], 5) == []


def test_one_long_row_stands_apart_if_that_saves_more_than_the_calls_cost() -> None:
    assert group_rows([100] * 15 + [4000], 192) == [Group(0, 15, 100, True), Group(15, 16, 4000, True)]
    assert group_rows([100, 4000, 90], 192) == [Group(0, 1, 100, True), Group(1, 2, 4000, True), Group(2, 3, 90, True)]
    assert group_rows([100, 290], 192) == [Group(0, 2, 290, False)]
    assert group_rows([100, 292], 192) == [Group(0, 2, 292, False)]
    assert group_rows([100, 293], 192) == [Group(0, 1, 100, True), Group(1, 2, 293, True)]

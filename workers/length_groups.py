"""Which rows attend together: neighbours whose lengths are close, so that no row pays for one much longer."""

from collections.abc import Sequence
from typing import NamedTuple


class Group(NamedTuple):
    """Rows `start` to `stop` (not included), of which the longest reaches `reach` slots."""

    start: int
    stop: int
    reach: int
    level: bool
    """True if all rows are of that length."""


def group_rows(lengths: Sequence[int], overhead: int) -> list[Group]:
    """The runs of neighbours over which attention costs least.

    A group costs `overhead` tokens, for the call, and its rows times its reach. Because a row could always be a group
    of its own, the rows of a group are padded by less than `overhead` tokens each on average; where neighbours lie in
    order of length, all is at most twice the tokens there are, and one `overhead` for each doubling of length. Adding
    one number to all lengths changes no group. Quadratic in the rows.
    """
    costs, last = [0], [Group(0, 0, 0, True)]
    for stop in range(1, len(lengths) + 1):
        longest = shortest = lengths[stop - 1]
        least, group = None, last[0]
        for start in range(stop - 1, -1, -1):
            longest, shortest = max(longest, lengths[start]), min(shortest, lengths[start])
            cost = costs[start] + overhead + (stop - start) * longest
            if least is None or cost <= least:  # of two that cost the same, the one of fewer calls
                least, group = cost, Group(start, stop, longest, shortest == longest)
        costs.append(least or 0)
        last.append(group)
    groups: list[Group] = []
    stop = len(lengths)
    while stop:
        groups.append(last[stop])
        stop = last[stop].start
    return groups[::-1]

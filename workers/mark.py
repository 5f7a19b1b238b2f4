"""What layers of state hold behind an exact number of tokens: the only places from which they can go on."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from pomona.workers import layers

MAX_MARKS = 16
"""Marks of one prompt or conversation; beyond them every second one goes, so that the oldest are furthest apart."""


class Mark(NamedTuple):
    """What all layers of state hold behind `tokens` tokens: arrays of its own, never written again."""

    tokens: int
    states: tuple[tuple[mx.array, ...], ...]

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for arrays in self.states for array in arrays)


def take_mark(caches: Sequence[Any], tokens: int) -> Mark:
    """Copy what the layers of state hold behind `tokens` tokens; empty where there are none."""
    each = [cache for cache in layers.leaves(caches) if layers.is_state(cache)]
    states = tuple(tuple(mx.contiguous(array) for array in layers.state(cache)) for cache in each)
    mx.async_eval(states)
    return Mark(tokens, states)


def thinned(marks: Sequence[Mark], max_bytes: int, dear: Collection[int] = ()) -> list[Mark]:
    """Ascending marks without every second one, until there are few enough; the last one stays.

    Those behind a number of tokens that is `dear` stay too, unless there is no room for them.
    """
    left = list(marks)
    while len(left) > MAX_MARKS or sum(mark.nbytes for mark in left) > max_bytes:
        loose = [mark.tokens for mark in left[:-1] if mark.tokens not in dear]
        if loose:
            gone = set(loose[::-2])
            left = [mark for mark in left if mark.tokens not in gone]
        elif dear and sum(mark.nbytes for mark in left) > max_bytes:
            dear = ()
        else:
            break
    return left

"""The RAM tier: what this worker computed lately for prompts and answers, reused without a copy of it.

Where all layers hold slices, an entry is reused from the first token on, cut anywhere. Layers of state can go on only
from where their state was marked: at block ends, at the end of the prompt and at the end of the turn.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pomona.workers import layers

MAX_MARKS = 16
"""Marks of one entry; beyond them every second one goes, so that the oldest are furthest apart."""


class Mark(NamedTuple):
    """What all layers of state hold behind `tokens` tokens: arrays of its own, never written again."""

    tokens: int
    states: tuple[tuple[mx.array, ...], ...]

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for arrays in self.states for array in arrays)


class Entry(NamedTuple):
    tokens: NDArray[np.int64]
    salt: str
    slices: tuple[tuple[mx.array, ...], ...]
    """Of each layer of slices, at least `tokens` long."""
    slice_bytes: int
    """Bytes of the buffers that the slices lie in."""
    marks: tuple[Mark, ...]
    """In ascending order, each within `tokens`; none where no layer holds state."""

    @property
    def nbytes(self) -> int:
        return self.slice_bytes + sum(mark.nbytes for mark in self.marks)

    def usable(self, common: int) -> int:
        """Tokens that can be restored where `common` tokens agree."""
        if not self.marks:
            return common
        return max((mark.tokens for mark in self.marks if mark.tokens <= common), default=0)

    def with_marks(self, marks: Sequence[Mark], max_bytes: int) -> "Entry":
        """With further marks; those that are too many or do not fit are thinned out, the last one stays."""
        by_tokens = {mark.tokens: mark for mark in (*marks, *self.marks)}
        every = [by_tokens[tokens] for tokens in sorted(by_tokens)]
        return self._replace(marks=tuple(_thinned(every, max_bytes - self.slice_bytes)))


def _thinned(marks: Sequence[Mark], max_bytes: int) -> list[Mark]:
    """Every second mark goes, and the last stays, until there are few enough."""
    left = list(marks)
    while len(left) > MAX_MARKS or (len(left) > 1 and sum(mark.nbytes for mark in left) > max_bytes):
        left = left[::-1][::2][::-1]
    return left


def take_mark(caches: Sequence[Any], tokens: int) -> Mark:
    """Copy what the layers of state hold behind `tokens` tokens; empty where there are none."""
    each = [cache for cache in layers.leaves(caches) if layers.is_state(cache)]
    states = tuple(tuple(mx.contiguous(array) for array in layers.state(cache)) for cache in each)
    mx.async_eval(states)
    return Mark(tokens, states)


class RecentPrefixes:
    """Least recently used entries go first once their bytes exceed `max_bytes`; 0 keeps nothing."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: list[Entry] = []  # most recently used last
        self._bytes = 0  # of all entries; asked for at every step, so not added up anew

    @property
    def nbytes(self) -> int:
        return self._bytes

    @property
    def entries(self) -> int:
        return len(self._entries)

    @property
    def keeps(self) -> bool:
        return self._max_bytes > 0

    def remember(self, tokens: Sequence[int], salt: str, caches: Sequence[Any], marks: Sequence[Mark] = ()) -> None:
        """Keep what `caches` hold of `tokens`; what is written to them later goes elsewhere.

        `marks` are of earlier ends within `tokens`. Nothing is kept of caches that do not hold so many tokens or, with
        layers of state, stand elsewhere.
        """
        if not self.keeps or not len(tokens):
            return
        if not all(layers.holds(cache, len(tokens)) for cache in layers.leaves(caches)):
            return
        entry = _entry(tokens, salt, caches, marks, self._max_bytes)
        if entry.nbytes > self._max_bytes:
            return
        # What an entry is the beginning of, it adds nothing to but its marks.
        longer = [other for other in self._entries if self._common(other, entry.tokens, salt) == len(tokens)]
        if longer:
            self._replace([longer[-1]], longer[-1].with_marks(entry.marks, self._max_bytes))
        else:
            shorter = [
                other for other in self._entries if 0 < len(other.tokens) == self._common(other, entry.tokens, salt)
            ]
            older = [each for other in shorter for each in other.marks]
            self._replace(shorter, entry.with_marks(older, self._max_bytes))
        while self._bytes > self._max_bytes:
            self._bytes -= self._entries.pop(0).nbytes

    def thinned(self, marks: Sequence[Mark]) -> list[Mark]:
        """Those of ascending marks that an entry might keep, so that a long prompt does not gather more."""
        return _thinned(marks, self._max_bytes)

    def longest(self, tokens: Sequence[int], salt: str) -> tuple[Entry, int] | None:
        """The entry that can restore the most tokens of the beginning of `tokens`, and how many; None if none can."""
        wanted = np.array(tokens, dtype=np.int64)
        best, most = None, 0
        for entry in self._entries:
            usable = entry.usable(self._common(entry, wanted, salt))
            if usable >= most and usable:
                best, most = entry, usable
        if best is None:
            return None
        self._replace([best], best)
        return best, most

    def shared(self, tokens: Sequence[int], salt: str) -> int:
        """The most tokens with which `tokens` and an entry begin, whether they can be restored or not."""
        wanted = np.array(tokens, dtype=np.int64)
        return max((self._common(entry, wanted, salt) for entry in self._entries), default=0)

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def _replace(self, gone: Sequence[Entry], entry: Entry) -> None:
        """Put an entry in the place of others, as the most recently used."""
        left = [other for other in self._entries if not any(other is each for each in gone)]
        self._entries = [*left, entry]
        self._bytes += entry.nbytes - sum(other.nbytes for other in gone)

    @staticmethod
    def _common(entry: Entry, tokens: NDArray[np.int64], salt: str) -> int:
        if entry.salt != salt:
            return 0
        size = min(len(entry.tokens), len(tokens))
        differing = np.flatnonzero(entry.tokens[:size] != tokens[:size])
        return int(differing[0]) if len(differing) else size


def _entry(tokens: Sequence[int], salt: str, caches: Sequence[Any], marks: Sequence[Mark], max_bytes: int) -> Entry:
    each = list(layers.leaves(caches))
    held = [cache for cache in each if not layers.is_state(cache)]
    slices = tuple(tuple(layers.slices(cache, 0, len(tokens))) for cache in held)
    mx.async_eval(slices)
    entry = Entry(np.array(tokens, dtype=np.int64), salt, slices, sum(int(cache.nbytes) for cache in held), marks=())
    if len(held) == len(each):
        return entry
    return entry.with_marks([*marks, take_mark(caches, len(tokens))], max_bytes)


def copy_prefix(entry: Entry, length: int, caches: Sequence[Any]) -> None:
    """Fill empty caches with the entry's first `length` tokens; what they append goes to buffers of their own.

    Raises ValueError for a length that the entry cannot restore.
    """
    if entry.usable(length) != length:
        raise ValueError(f"an entry of the RAM tier cannot be restored at {length} tokens")
    slices = iter(entry.slices)
    states = iter(next((mark.states for mark in entry.marks if mark.tokens == length), ()))
    for cache in layers.leaves(caches):
        arrays = next(states) if layers.is_state(cache) else [part[..., :length, :] for part in next(slices)]
        layers.fill(cache, arrays, length)

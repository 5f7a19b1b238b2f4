"""The RAM tier: KV of prompts and answers that this worker saw lately, reused from the first token on.

Entries are plain KV caches of one row, evaluated and never written again; a hit is a slice of one of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mlx_lm.models.cache import KVCache
from numpy.typing import NDArray


class Entry(NamedTuple):
    tokens: NDArray[np.int64]
    salt: str
    caches: Sequence[KVCache]
    """One a layer, holding at least `tokens`."""
    nbytes: int


class RecentPrefixes:
    """Least recently used entries go first once their bytes exceed `max_bytes`; 0 keeps nothing."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: list[Entry] = []  # most recently used last

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._entries)

    @property
    def entries(self) -> int:
        return len(self._entries)

    @property
    def keeps(self) -> bool:
        return self._max_bytes > 0

    def remember(self, tokens: Sequence[int], salt: str, caches: Sequence[KVCache]) -> None:
        """Keep the KV of `tokens`; the caller must not write to `caches` any more."""
        entry = Entry(np.array(tokens, dtype=np.int64), salt, tuple(caches), sum(cache.nbytes for cache in caches))
        if not len(tokens) or entry.nbytes > self._max_bytes:
            return
        # What an entry is the beginning of, it adds nothing to.
        longer = [other for other in self._entries if self._common(other, entry.tokens, salt) == len(tokens)]
        if longer:
            self._touch(longer[-1])
            return
        self._entries = [
            other for other in self._entries if self._common(other, entry.tokens, salt) < len(other.tokens)
        ]
        self._entries.append(entry)
        while self.nbytes > self._max_bytes:
            del self._entries[0]

    def longest(self, tokens: Sequence[int], salt: str) -> tuple[Entry, int] | None:
        """The entry that shares the most tokens with the beginning of `tokens`, and how many; None if none does."""
        wanted = np.array(tokens, dtype=np.int64)
        best, shared = None, 0
        for entry in self._entries:
            common = self._common(entry, wanted, salt)
            if common >= shared and common:
                best, shared = entry, common
        if best is None:
            return None
        self._touch(best)
        return best, shared

    def clear(self) -> None:
        self._entries.clear()

    def _touch(self, entry: Entry) -> None:
        self._entries = [*(other for other in self._entries if other is not entry), entry]

    @staticmethod
    def _common(entry: Entry, tokens: NDArray[np.int64], salt: str) -> int:
        if entry.salt != salt:
            return 0
        size = min(len(entry.tokens), len(tokens))
        differing = np.flatnonzero(entry.tokens[:size] != tokens[:size])
        return int(differing[0]) if len(differing) else size


def copy_prefix(entry: Entry, length: int, caches: Sequence[KVCache]) -> None:
    """Fill empty caches with the entry's first `length` tokens; what they append goes to buffers of their own."""
    for source, target in zip(entry.caches, caches, strict=True):
        if source.keys is None or source.values is None:
            raise ValueError("an entry of the RAM tier holds nothing")
        target.keys = source.keys[..., :length, :]
        target.values = source.values[..., :length, :]
        target.offset = length

"""One row on mlx-lm's own cache, of a kind that has no batch form."""

import copy
from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import ChunkedKVCache, KVCache, QuantizedKVCache

from pomona.workers.slots import SlotLengths

CUT = (KVCache, QuantizedKVCache, ChunkedKVCache)
"""Kinds from whose end tokens can be cut."""


class Solo:
    """The cache that the row came with; a second row is refused."""

    is_state = False
    overwrites = False
    widest = None

    def __init__(self, shared: SlotLengths, empty: Any) -> None:
        """`empty` is a cache of the kind that will join."""
        self._shared = shared
        self._cache = empty
        kind = type(empty)
        self.refusal = "" if kind in CUT else f"tokens cannot be cut off a {kind.__name__}"

    @property
    def as_cache(self) -> Any:
        return self._cache

    @property
    def nbytes(self) -> int:
        return int(self._cache.nbytes) if self._shared.lengths else 0

    def join(self, single: Any) -> None:
        """Takes it as it is. Raises ValueError if a row is there."""
        if self._shared.lengths:
            raise ValueError(f"a {type(single).__name__} takes one row at a time")
        self._cache = single

    def keep(self, rows: list[int]) -> None:
        """The row stays where it is."""

    def extract(self, index: int) -> Any:
        """The cache itself, or what it is without the tokens that are not settled."""
        if not self._shared.unsettled:
            return self._cache
        taken = copy.copy(self._cache)
        cut(taken, self._shared.lengths[index])
        return taken

    def hold(self) -> None:
        """Tokens are cut off again."""

    def settle(self, whole: Sequence[bool]) -> None:
        cut(self._cache, self._shared.lengths[0])


def cut(cache: Any, length: int) -> None:
    """Let go of what lies behind `length` tokens. Raises ValueError where that cannot be done to the token."""
    more = cache.offset - length
    if not 0 <= more <= cache.offset:
        raise ValueError(f"a {type(cache).__name__} of {cache.offset} tokens cannot be cut to {length}")
    if more and cache.trim(more) != more:
        raise ValueError(f"a {type(cache).__name__} of {cache.offset} tokens could not be cut by {more}")

"""KV that a drafting model keeps of requests: rows in slots, of which each can be cut back to any length."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from pomona.workers.messages import RequestId
from pomona.workers.slots import SlotCache, SlotLengths


class DraftKV:
    """One row for each request, all of a forward at once; row i of every cache is `requests[i]`'s.

    What a row holds beyond its length is never attended to, so cutting it back costs nothing.
    """

    def __init__(self, layers: int) -> None:
        self.requests: list[RequestId] = []
        self._shared = SlotLengths()
        self.caches = [SlotCache(self._shared) for _ in range(layers)]

    def __contains__(self, request: RequestId) -> bool:
        return request in self.requests

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    def row(self, request: RequestId) -> int:
        return self.requests.index(request)

    def length(self, request: RequestId) -> int:
        """Tokens that the row holds."""
        return self._shared.lengths[self.row(request)]

    def join(self, request: RequestId, caches: Sequence[KVCache], length: int) -> None:
        """Add a row of `length` tokens, one cache a layer; they are copied. Raises ValueError for one that is there."""
        if request in self.requests:
            raise ValueError(f"{request} has a row already")
        for cache, single in zip(self.caches, caches, strict=True):
            cache.join(single)
        self.requests.append(request)
        self._shared.lengths.append(length)

    def leave(self, request: RequestId) -> None:
        """Drop a row; the last one moves into its place. Legal for one that is not there."""
        if request not in self.requests:
            return
        index, last = self.row(request), len(self.requests) - 1
        order = [last if row == index else row for row in range(last)]
        for cache in self.caches:
            cache.keep(order)
        self.requests = [self.requests[row] for row in order]
        self._shared.lengths = [self._shared.lengths[row] for row in order]

    def take_out(self, request: RequestId) -> list[KVCache]:
        """The row leaves, with copies of what it holds."""
        index = self.row(request)
        own = [cache.extract(index) for cache in self.caches]
        mx.eval([cache.state for cache in own if cache.keys is not None])
        self.leave(request)
        return own

    def cut(self, request: RequestId, length: int) -> None:
        """Let go of what lies behind `length` tokens. Raises ValueError if the row holds fewer."""
        index = self.row(request)
        if not 0 <= length <= self._shared.lengths[index]:
            raise ValueError(f"{request} holds {self._shared.lengths[index]} tokens, not {length}")
        self._shared.lengths[index] = length

    def begin(self) -> None:
        """Called before each forward, which takes all rows, in their order."""
        self._shared.begin()

    def grow(self, tokens: Sequence[int]) -> None:
        """The forward wrote as many tokens to every row as its widest; row i keeps `tokens[i]` of them."""
        self._shared.lengths = [length + more for length, more in zip(self._shared.lengths, tokens, strict=True)]

    def empty_row(self) -> list[Any]:
        """Caches of a row without tokens, to be filled alone."""
        return [KVCache() for _ in self.caches]

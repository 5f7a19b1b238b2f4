"""Sliding windows of all rows: the batch form of mlx-lm's `RotatingKVCache` that keeps no first tokens."""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from pomona.workers import layers
from pomona.workers.slot_buffers import SlotBuffers
from pomona.workers.slots import SlotLengths

SLACK = 32
"""Tokens that one forward may write beyond a window without reaching what its first query still looks at."""


class RingCache(SlotBuffers):
    """One layer's window for all rows: position p of a row lies in place p modulo the ring, whatever the others hold.

    The ring is longer than the window by `SLACK`, so that a forward of as many tokens writes over nothing that any row
    may still look at, and refused tokens need no undoing: the mask knows from the row's end which position each place
    holds, and what it takes for an old one is beyond the window.
    """

    refusal = ""
    is_state = False
    overwrites = True
    widest = SLACK

    def __init__(self, shared: SlotLengths, window: int) -> None:
        self._ring = window + SLACK
        super().__init__(self._ring)
        self.shared = shared
        self.window = window
        self._fetched = slice(0), 0

    @property
    def as_cache(self) -> "RingCache":
        return self

    @property
    def offset(self) -> mx.array:
        """int32 [rows]: where each row writes."""
        return self.shared.offset

    def make_mask(self, tokens: int, window_size: int | None = None, return_array: bool = False) -> mx.array | None:
        """Boolean [rows, 1, tokens, places], true where a query may look; None where all may look at all."""
        window = min(window_size or self.window, self.window)
        return self.shared.memo(("ring", tokens, window, self._ring), lambda: self._build_mask(tokens, window))

    def _build_mask(self, tokens: int, window: int) -> mx.array | None:
        places, level = self._places(tokens), self.shared.level()
        if tokens == 1 and level is not None and level < window:
            return None
        queries = self.shared.offset[:, None] + mx.arange(tokens)
        newest = queries[:, -1:]
        held = newest - (newest - mx.arange(places)) % self._ring  # the last position that belongs into each place
        held, queries = held[:, None, None, :], queries[:, None, :, None]
        return (held >= 0) & (held <= queries) & (held > queries - window)

    def _places(self, tokens: int) -> int:
        return min(self.shared.reach(tokens), self._ring)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write [rows, heads, tokens, head_dim] behind the rows; returns all places that any row has reached.

        Raises ValueError for more tokens than `SLACK`.
        """
        rows, tokens = keys.shape[0], keys.shape[2]
        if tokens > SLACK:
            raise ValueError(f"{tokens} tokens in one forward are more than a window's ring has room for: {SLACK}")
        places = self._places(tokens)
        slots = self.reserve(rows, places, keys, values)
        level = self.shared.level()
        if level is not None and level % self._ring + tokens <= self._ring:
            self.put(keys, values, level % self._ring)
        else:
            self.put(keys, values, self.shared.positions(tokens, slots, self._ring))
        self._fetched = slice(rows), places
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What `update_and_fetch` returned in this forward, for layers that share this one's KV."""
        return self.view(*self._fetched)

    def join(self, single: RotatingKVCache) -> None:
        if single.keys is None or single.values is None:
            return
        row, length = len(self.shared.lengths), single.offset
        keys, values = layers.state(single)
        self.reserve(row + 1, min(length, self._ring), keys, values)
        done = 0
        for start, stop in self._runs(length - keys.shape[2], length):
            piece = slice(done, done + stop - start)
            self.put(keys[:, :, piece], values[:, :, piece], start, row)
            done += stop - start

    def _runs(self, first: int, end: int) -> list[tuple[int, int]]:
        """Where positions `first` to `end`, of which there are no more than the ring has places, lie in order."""
        start, count = first % self._ring, end - first
        runs = [(start, min(start + count, self._ring)), (0, start + count - self._ring)]
        return [(start, stop) for start, stop in runs if stop > start]

    def keep(self, rows: list[int]) -> None:
        self.move(rows, [length + self.shared.unsettled for length in self.shared.lengths])

    def extract(self, index: int) -> RotatingKVCache:
        """A copy of the row's window, oldest token first."""
        taken = RotatingKVCache(self.window)
        length = self.shared.lengths[index]
        if self.keys is None or self.values is None or not length:
            return taken
        runs = self._runs(length - min(self.window, length), length)
        taken.keys, taken.values = (
            mx.concatenate([array[index : index + 1, :, start:stop] for start, stop in runs], axis=2)
            for array in (self.keys, self.values)
        )
        taken.offset = length
        taken._idx = taken.keys.shape[2]
        return taken

    def hold(self) -> None:
        """What a forward writes over is nothing that a row may need again."""

    def settle(self, whole: Sequence[bool]) -> None:
        """What is refused is written over by what follows."""

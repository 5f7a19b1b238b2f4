"""Keys and values of rows that lie in slots, and how slots are added, moved and given back."""

from collections.abc import Sequence

import mlx.core as mx

STEP = 256
"""Tokens by which a buffer grows."""
ROOMY = 4
"""Times what the rows need, from which on a buffer gives back the rest."""


def rounded(tokens: int) -> int:
    """Places of a buffer for so many tokens."""
    return -(-tokens // STEP) * STEP


class SlotBuffers:
    """One layer's KV, [slots, heads, capacity, head_dim] each; slots behind the last row are free."""

    def __init__(self, most: int | None = None) -> None:
        """A slot never holds more than `most` tokens."""
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._most = most

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None or self.values is None else int(self.keys.nbytes + self.values.nbytes)

    def reserve(self, rows: int, tokens: int, keys: mx.array, values: mx.array) -> int:
        """Make room for `rows` slots of `tokens` tokens like `keys` and `values`; returns how many slots there are.

        Slots double, so that rows that join one after another do not each move all that is there.
        """
        slots, capacity = (0, 0) if self.keys is None else (self.keys.shape[0], self.keys.shape[2])
        if self.keys is None or self.values is None or rows > slots or tokens > capacity:
            slots = slots if rows <= slots else max(rows, 2 * slots)
            capacity = max(self._rounded(tokens), capacity)
            self.keys = _resized(self.keys, slots, capacity, keys)
            self.values = _resized(self.values, slots, capacity, values)
        return slots

    def _rounded(self, tokens: int) -> int:
        return rounded(tokens) if self._most is None else min(rounded(tokens), self._most)

    def put(self, keys: mx.array, values: mx.array, at: int | mx.array, first: int = 0) -> None:
        """Write [rows, heads, tokens, head_dim] into room that is reserved, from slot `first` on.

        `at` is where all rows write; or, with all rows from the first slot on, each slot's positions, int32 [slots, 1,
        tokens, 1], where what free slots get means nothing. Raises ValueError if no room was reserved.
        """
        if self.keys is None or self.values is None:
            raise ValueError("KV is written where no room was reserved")
        if isinstance(at, int):
            rows, places = slice(first, first + keys.shape[0]), slice(at, at + keys.shape[2])
            self.keys[rows, :, places] = keys
            self.values[rows, :, places] = values
        else:
            self.keys = _put(self.keys, at, keys)
            self.values = _put(self.values, at, values)

    def view(self, rows: slice, tokens: int) -> tuple[mx.array, mx.array]:
        """Views of the first `tokens` places of some slots. Raises ValueError if nothing was written."""
        if self.keys is None or self.values is None:
            raise ValueError("KV is asked for before any was written")
        return self.keys[rows, :, :tokens], self.values[rows, :, :tokens]

    def move(self, order: Sequence[int], held: Sequence[int]) -> None:
        """Slot i becomes what slot `order[i]` was; slots that are not named are free.

        `held[i]` tokens of slot i count. What nobody needs any more is given back once it is most of the buffers.
        """
        if not order:
            self.keys = self.values = None
            return
        if self.keys is None or self.values is None:
            return
        slots = self.reserve(len(order), 0, self.keys, self.values)
        moved = [
            # Copies: a view would keep the whole buffer from being written in place.
            (
                target,
                tokens,
                mx.contiguous(self.keys[source, :, :tokens]),
                mx.contiguous(self.values[source, :, :tokens]),
            )
            for target, source in enumerate(order)
            # A row that holds nothing may have no slot yet.
            if target != source < slots and (tokens := min(held[source], self.keys.shape[2]))
        ]
        for target, tokens, keys, values in moved:
            self.keys[target, :, :tokens] = keys
            self.values[target, :, :tokens] = values
        rows, capacity = len(order), self._rounded(max(held[source] for source in order) + 1)
        if slots * self.keys.shape[2] >= ROOMY * rows * capacity:
            self.keys = mx.contiguous(self.keys[:rows, :, :capacity])
            self.values = mx.contiguous(self.values[:rows, :, :capacity])


def _resized(old: mx.array | None, slots: int, capacity: int, like: mx.array) -> mx.array:
    new = mx.zeros((slots, like.shape[1], capacity, like.shape[3]), dtype=like.dtype)
    if old is not None:
        new[: old.shape[0], :, : old.shape[2]] = old
    return new


def _put(buffer: mx.array, positions: mx.array, new: mx.array) -> mx.array:
    slots, (rows, *rest) = buffer.shape[0], new.shape
    padded = new if rows == slots else mx.concatenate([new, mx.zeros((slots - rows, *rest), dtype=new.dtype)])
    return mx.put_along_axis(buffer, mx.broadcast_to(positions, padded.shape), padded, axis=2)

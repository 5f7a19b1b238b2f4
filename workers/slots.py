"""KV rows that lie left-aligned in slots, each with its own length: the batch form of mlx-lm's plain `KVCache`.

Every row writes at its own offset, so that what a row holds beyond its length is never attended to and is overwritten
by its next step; rows join and leave without moving their neighbours.
"""

import mlx.core as mx
from mlx_lm.models.cache import KVCache

STEP = 256
"""Tokens by which a buffer grows."""


class SlotLengths:
    """The rows' lengths, shared by all layers of a model, and what one step derives from them."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.offset = mx.array([], dtype=mx.int32)
        self._masks: dict[tuple[int, int | None], mx.array | None] = {}
        self._places: dict[int, tuple[mx.array, mx.array]] = {}

    def begin(self) -> None:
        """Fix offsets for one forward; called before it, and after rows joined or left."""
        self.offset = mx.array(self.lengths, dtype=mx.int32)
        self._masks.clear()
        self._places.clear()

    def advance(self, tokens: int) -> None:
        """One forward has written `tokens` tokens to every row."""
        self.lengths = [length + tokens for length in self.lengths]

    def reach(self, tokens: int) -> int:
        """Slots that a forward of `tokens` tokens looks at."""
        return max(self.lengths) + tokens

    def mask(self, tokens: int, window: int | None) -> mx.array | None:
        """Boolean [rows, 1, tokens, reach], true where a query may look; None where all may look at all."""
        key = (tokens, window)
        if key not in self._masks:
            self._masks[key] = self._build_mask(tokens, window)
        return self._masks[key]

    def _build_mask(self, tokens: int, window: int | None) -> mx.array | None:
        reach = self.reach(tokens)
        level = min(self.lengths) == max(self.lengths)
        if level and tokens == 1 and (window is None or reach <= window):
            return None
        slots = mx.arange(reach)[None, None, None, :]
        queries = (self.offset[:, None] + mx.arange(tokens))[:, None, :, None]
        mask = slots <= queries
        if window is not None:
            mask = mask & (slots > queries - window)
        return mask

    def places(self, tokens: int) -> tuple[mx.array, mx.array]:
        """Where a forward writes: slots int32 [rows, 1] and positions int32 [rows, tokens]."""
        if tokens not in self._places:
            rows = mx.arange(len(self.lengths))[:, None]
            self._places[tokens] = (rows, self.offset[:, None] + mx.arange(tokens))
        return self._places[tokens]


class SlotCache:
    """One layer's KV for all rows; mlx-lm's cache interface over [slots, heads, capacity, head_dim] buffers."""

    def __init__(self, shared: SlotLengths) -> None:
        self.shared = shared
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> mx.array:
        """int32 [rows]: tokens that each row holds."""
        return self.shared.offset

    @property
    def nbytes(self) -> int:
        if self.keys is None or self.values is None:
            return 0
        return int(self.keys.nbytes + self.values.nbytes)

    def make_mask(self, tokens: int, return_array: bool = False, window_size: int | None = None) -> mx.array | None:
        return self.shared.mask(tokens, window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write [rows, heads, tokens, head_dim] at the rows' offsets; returns all rows' slots up to the reach."""
        rows, _, tokens, _ = keys.shape
        reach = self.shared.reach(tokens)
        own_keys, own_values = self._reserve(rows, reach, keys, values)
        slots, positions = self.shared.places(tokens)
        own_keys[slots, :, positions] = keys.transpose(0, 2, 1, 3)
        own_values[slots, :, positions] = values.transpose(0, 2, 1, 3)
        return own_keys[:rows, :, :reach], own_values[:rows, :, :reach]

    def _reserve(self, rows: int, reach: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The buffers, with room for `rows` slots of `reach` tokens; they shrink when all left.

        Slots double, so that rows that join one after another do not each move all that is there.
        """
        slots, capacity = (0, 0) if self.keys is None else (self.keys.shape[0], self.keys.shape[2])
        if self.keys is None or self.values is None or rows > slots or reach > capacity:
            slots = slots if rows <= slots else max(rows, 2 * slots)
            capacity = max(-(-reach // STEP) * STEP, capacity)
            self.keys = self._resized(self.keys, slots, capacity, keys)
            self.values = self._resized(self.values, slots, capacity, values)
        return self.keys, self.values

    @staticmethod
    def _resized(old: mx.array | None, slots: int, capacity: int, like: mx.array) -> mx.array:
        new = mx.zeros((slots, like.shape[1], capacity, like.shape[3]), dtype=like.dtype)
        if old is not None:
            new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def join(self, row: KVCache) -> None:
        """Copy one prefilled row [1, heads, length, head_dim] into the slot behind the last; the caller counts it."""
        if row.keys is None or row.values is None:
            return
        index, length = len(self.shared.lengths), row.offset
        keys, values = row.keys[..., :length, :], row.values[..., :length, :]
        own_keys, own_values = self._reserve(index + 1, length, keys, values)
        own_keys[index : index + 1, :, :length] = keys
        own_values[index : index + 1, :, :length] = values

    def keep(self, order: list[int]) -> None:
        """Row i becomes what row `order[i]` was; rows that are not named are free."""
        if not order:
            self.keys = self.values = None
            return
        if self.keys is None or self.values is None:
            return
        self._reserve(len(order), 0, self.keys, self.values)
        moved = [
            # Copies: a view would keep the whole buffer from being written in place.
            (
                target,
                length,
                mx.contiguous(self.keys[source, :, :length]),
                mx.contiguous(self.values[source, :, :length]),
            )
            for target, source in enumerate(order)
            # A row that holds nothing may have no slot yet.
            if target != source and (length := self.shared.lengths[source])
        ]
        for target, length, keys, values in moved:
            self.keys[target, :, :length] = keys
            self.values[target, :, :length] = values

    def extract(self, index: int) -> KVCache:
        """One row as mlx-lm's own cache: a copy."""
        row = KVCache()
        length = self.shared.lengths[index]
        if self.keys is not None and self.values is not None and length:
            row.keys = mx.contiguous(self.keys[index : index + 1, :, :length])
            row.values = mx.contiguous(self.values[index : index + 1, :, :length])
            row.offset = length
        return row

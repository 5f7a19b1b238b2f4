"""KV rows that lie left-aligned in slots, each with its own length: the batch form of mlx-lm's plain `KVCache`.

Every row writes at its own offset, so that what a row holds beyond its length is never attended to and is overwritten
by its next step; rows join and leave without moving their neighbours.
"""

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from pomona.workers.length_groups import Group, group_rows

STEP = 256
"""Tokens by which a buffer grows."""
ROOMY = 4
"""Times what the rows need, from which on a buffer gives back the rest."""
CPU_CALL, GPU_CALL = 192, 1024
"""Tokens of one row whose attention takes about as long as one more call in a layer does before it begins."""


class SlotLengths:
    """The rows' lengths, shared by all layers of a model, and what one step derives from them."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.offset = mx.array([], dtype=mx.int32)
        self._call = CPU_CALL if mx.default_device() == mx.cpu else GPU_CALL
        self._beyond: list[int] = []
        self._groups: list[Group] = []
        self._reaching: dict[int, list[Group]] = {}
        self._masks: dict[tuple[int, int | None], mx.array | None] = {}
        self._parts: dict[int, tuple[mx.array | None, list[mx.array | None]]] = {}
        self._positions: dict[tuple[int, int], mx.array] = {}

    def begin(self) -> None:
        """Fix offsets and groups for one forward; called before it, and after rows joined or left."""
        self.offset = mx.array(self.lengths, dtype=mx.int32)
        self._reaching.clear()
        self._masks.clear()
        self._parts.clear()
        self._positions.clear()
        shortest = min(self.lengths, default=0)
        beyond = [length - shortest for length in self.lengths]
        if beyond != self._beyond:  # what all rows have more changes no group
            self._beyond, self._groups = beyond, group_rows(beyond, self._call)

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
        if self.level() is not None and tokens == 1 and (window is None or reach <= window):
            return None
        slots = mx.arange(reach)[None, None, None, :]
        queries = (self.offset[:, None] + mx.arange(tokens))[:, None, :, None]
        mask = slots <= queries
        if window is not None:
            mask = mask & (slots > queries - window)
        return mask

    def groups(self, tokens: int) -> list[Group]:
        """Which rows a forward of `tokens` tokens lets attend together, and the slots that each group looks at."""
        if tokens not in self._reaching:
            more = min(self.lengths) + tokens
            self._reaching[tokens] = [group._replace(reach=group.reach + more) for group in self._groups]
        return self._reaching[tokens]

    def group_masks(self, mask: mx.array | None, tokens: int) -> list[mx.array | None]:
        """A mask that broadcasts to [rows, heads, tokens, reach] as each group needs it; cut once a forward."""
        if id(mask) not in self._parts:
            windows = [window for (_, window), own in self._masks.items() if own is mask]
            parts = [
                None
                if mask is None or (tokens == 1 and group.level and any(w is None or group.reach <= w for w in windows))
                else _cut(mask, group)
                for group in self.groups(tokens)
            ]
            self._parts[id(mask)] = mask, parts  # the mask too: its id must not become another's
        return self._parts[id(mask)][1]

    def level(self) -> int | None:
        """The length of all rows, if it is one."""
        return self.lengths[0] if min(self.lengths) == max(self.lengths) else None

    def positions(self, tokens: int, slots: int) -> mx.array:
        """Where a forward writes along a buffer of `slots` slots, int32 [slots, 1, tokens, 1]; free slots at 0."""
        key = (tokens, slots)
        if key not in self._positions:
            offset = mx.array([*self.lengths, *[0] * (slots - len(self.lengths))], dtype=mx.int32)
            self._positions[key] = (offset[:, None] + mx.arange(tokens))[:, None, :, None]
        return self._positions[key]


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
        level = self.shared.level()
        if level is not None:
            own_keys[:rows, :, level:reach] = keys
            own_values[:rows, :, level:reach] = values
        else:
            positions = self.shared.positions(tokens, own_keys.shape[0])
            self.keys = own_keys = _put(own_keys, positions, keys)
            self.values = own_values = _put(own_values, positions, values)
        return own_keys[:rows, :, :reach], own_values[:rows, :, :reach]

    def _reserve(self, rows: int, reach: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The buffers, with room for `rows` slots of `reach` tokens.

        Slots double, so that rows that join one after another do not each move all that is there.
        """
        slots, capacity = (0, 0) if self.keys is None else (self.keys.shape[0], self.keys.shape[2])
        if self.keys is None or self.values is None or rows > slots or reach > capacity:
            slots = slots if rows <= slots else max(rows, 2 * slots)
            capacity = max(_rounded(reach), capacity)
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
        self._trim(len(order), max(self.shared.lengths[source] for source in order))

    def _trim(self, rows: int, longest: int) -> None:
        """Give back what rows that left have needed, once it is most of the buffers."""
        if self.keys is None or self.values is None:
            return
        slots, capacity = self.keys.shape[0], _rounded(longest + 1)
        if slots * self.keys.shape[2] >= ROOMY * rows * capacity:
            self.keys = mx.contiguous(self.keys[:rows, :, :capacity])
            self.values = mx.contiguous(self.values[:rows, :, :capacity])

    def extract(self, index: int) -> KVCache:
        """One row as mlx-lm's own cache: a copy."""
        row = KVCache()
        length = self.shared.lengths[index]
        if self.keys is not None and self.values is not None and length:
            row.keys = mx.contiguous(self.keys[index : index + 1, :, :length])
            row.values = mx.contiguous(self.values[index : index + 1, :, :length])
            row.offset = length
        return row


def _rounded(tokens: int) -> int:
    return -(-tokens // STEP) * STEP


def _cut(mask: mx.array, group: Group) -> mx.array:
    """What a group needs of a mask; axes of length 1, or that it does not have, are all rows' or all slots'."""
    rows = mask[group.start : group.stop] if mask.ndim == 4 and mask.shape[0] > 1 else mask
    return rows[..., : group.reach]


def _put(buffer: mx.array, positions: mx.array, new: mx.array) -> mx.array:
    """Write [rows, heads, tokens, head_dim] at each slot's positions; what free slots get means nothing."""
    slots, (rows, *rest) = buffer.shape[0], new.shape
    padded = new if rows == slots else mx.concatenate([new, mx.zeros((slots - rows, *rest), dtype=new.dtype)])
    return mx.put_along_axis(buffer, mx.broadcast_to(positions, padded.shape), padded, axis=2)

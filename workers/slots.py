"""KV rows that lie left-aligned in slots, each with its own length: the batch form of mlx-lm's plain `KVCache`.

Every row writes at its own offset, so that what a row holds beyond its length is never attended to and is overwritten
by its next step; rows join and leave without moving their neighbours. Long rows may stand apart, behind the others, in
buffers of their own; what slots take is then bounded by the length of short ones.
"""

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from pomona.workers.length_groups import Group, group_rows
from pomona.workers.row_buffers import RowBuffers

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
        self.apart = 0
        """The last so many rows are not in slots."""
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
        in_slots = self.lengths[: self.in_slots]
        shortest = min(in_slots, default=0)
        beyond = [length - shortest for length in in_slots]
        if beyond != self._beyond:  # what all rows have more changes no group
            self._beyond, self._groups = beyond, group_rows(beyond, self._call)

    def advance(self, tokens: int) -> None:
        """One forward has written `tokens` tokens to every row."""
        self.lengths = [length + tokens for length in self.lengths]

    @property
    def in_slots(self) -> int:
        """Rows that are in slots: the first ones."""
        return len(self.lengths) - self.apart

    def reach(self, tokens: int) -> int:
        """Tokens that the longest row has after a forward of `tokens` tokens."""
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
        """Which rows a forward of `tokens` tokens lets attend together, and the tokens that each group looks at."""
        if tokens not in self._reaching:
            more = min(self.lengths[: self.in_slots], default=0) + tokens
            self._reaching[tokens] = [
                *(group._replace(reach=group.reach + more) for group in self._groups),
                *(
                    Group(row, row + 1, self.lengths[row] + tokens, True)
                    for row in range(self.in_slots, len(self.lengths))
                ),
            ]
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
            lengths = self.lengths[: self.in_slots]
            offset = mx.array([*lengths, *[0] * (slots - len(lengths))], dtype=mx.int32)
            self._positions[key] = (offset[:, None] + mx.arange(tokens))[:, None, :, None]
        return self._positions[key]


class SlotCache:
    """One layer's KV for all rows; mlx-lm's cache interface over [slots, heads, capacity, head_dim] buffers."""

    def __init__(self, shared: SlotLengths) -> None:
        self.shared = shared
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.apart: list[RowBuffers] = []
        """Of the rows that are not in slots, in their order."""
        self.fetched: mx.array | None = None
        """The keys that `update_and_fetch` returned last."""
        self.attended = False
        """Whether anybody asked for a `part`."""

    @property
    def offset(self) -> mx.array:
        """int32 [rows]: tokens that each row holds."""
        return self.shared.offset

    @property
    def nbytes(self) -> int:
        slots = 0 if self.keys is None or self.values is None else int(self.keys.nbytes + self.values.nbytes)
        return slots + sum(row.nbytes for row in self.apart)

    def make_mask(self, tokens: int, return_array: bool = False, window_size: int | None = None) -> mx.array | None:
        return self.shared.mask(tokens, window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write [rows, heads, tokens, head_dim] at the rows' offsets; returns all rows' slots up to the reach.

        Where rows stand apart there is no array of all that they hold: what comes back is what was given, and stands
        for it in attention, which asks for each `part`.
        """
        self.fetched = None  # a view of the buffers would keep them from being written in place
        rows, tokens = self.shared.in_slots, keys.shape[2]
        for index, row in enumerate(self.apart, rows):
            own = slice(index, index + 1)
            row.write(keys[own], values[own], self.shared.lengths[index], STEP)
        if not self.apart:
            self.fetched, fetched_values = self._write(keys, values, tokens)
            return self.fetched, fetched_values
        if rows:
            self._write(keys[:rows], values[:rows], tokens)
        self.fetched = keys
        return keys, values

    def _write(self, keys: mx.array, values: mx.array, tokens: int) -> tuple[mx.array, mx.array]:
        """Into the slots; returns them up to their reach."""
        rows = keys.shape[0]
        lengths = self.shared.lengths[:rows]
        reach = max(lengths) + tokens
        own_keys, own_values = self._reserve(rows, reach, keys, values)
        if (level := min(lengths)) == max(lengths):
            own_keys[:rows, :, level:reach] = keys
            own_values[:rows, :, level:reach] = values
        else:
            positions = self.shared.positions(tokens, own_keys.shape[0])
            self.keys = own_keys = _put(own_keys, positions, keys)
            self.values = own_values = _put(own_values, positions, values)
        return own_keys[:rows, :, :reach], own_values[:rows, :, :reach]

    def part(self, group: Group) -> tuple[mx.array, mx.array]:
        """What a group looks at: [rows, heads, reach, head_dim]. Raises ValueError if nothing was written."""
        self.attended = True
        rows = slice(group.start, group.stop)
        keys, values = self.keys, self.values
        if group.start >= self.shared.in_slots:
            row = self.apart[group.start - self.shared.in_slots]
            keys, values, rows = row.keys, row.values, slice(None)
        if keys is None or values is None:
            raise ValueError("a part of KV is asked for before any was written")
        return keys[rows, :, : group.reach], values[rows, :, : group.reach]

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
        index, length = self.shared.in_slots, row.offset
        keys, values = row.keys[..., :length, :], row.values[..., :length, :]
        own_keys, own_values = self._reserve(index + 1, length, keys, values)
        own_keys[index : index + 1, :, :length] = keys
        own_values[index : index + 1, :, :length] = values

    def join_apart(self, row: KVCache) -> None:
        """Take in one prefilled row behind the last one; the caller counts it. Its first step copies its buffers."""
        if row.keys is None or row.values is None:
            self.apart.append(RowBuffers(None, None))
        else:
            # Arrays of our own: a write to one changes it for all that hold it.
            self.apart.append(RowBuffers(row.keys[:], row.values[:]))

    def set_apart(self, index: int) -> None:
        """Copy a row out of its slot and stand it behind the last row; the caller counts it and lets go of the slot."""
        if self.keys is None or self.values is None:
            raise ValueError(f"row {index} holds nothing")
        own = slice(index, index + 1)
        self.apart.append(RowBuffers(mx.contiguous(self.keys[own]), mx.contiguous(self.values[own])))

    def keep(self, rows: list[int]) -> None:
        """Row i becomes what row `rows[i]` was; rows that are not named are free. Rows in slots come first."""
        self.fetched = None
        in_slots = self.shared.in_slots
        self.apart = [self.apart[row - in_slots] for row in rows if row >= in_slots]
        self._keep_slots([row for row in rows if row < in_slots])

    def _keep_slots(self, order: list[int]) -> None:
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
        """One row as mlx-lm's own cache: a copy, or the buffers of a row apart."""
        row = KVCache()
        length = self.shared.lengths[index]
        if index >= self.shared.in_slots:
            own = self.apart[index - self.shared.in_slots]
            row.keys, row.values, row.offset = own.keys, own.values, length
        elif self.keys is not None and self.values is not None and length:
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

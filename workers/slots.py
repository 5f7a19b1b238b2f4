"""KV rows that lie left-aligned in slots, each with its own length: the batch form of mlx-lm's plain `KVCache`.

Every row writes at its own offset, so that what a row holds beyond its length is never attended to and is overwritten
by its next step; rows join and leave without moving their neighbours. Long rows may stand apart, behind the others, in
buffers of their own; what slots take is then bounded by the length of short ones.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from pomona.workers.length_groups import Group, group_rows
from pomona.workers.row_buffers import RowBuffers
from pomona.workers.slot_buffers import STEP, SlotBuffers

T = TypeVar("T")

CPU_CALL, GPU_CALL = 192, 1024
"""Tokens of one row whose attention takes about as long as one more call in a layer does before it begins."""


class SlotLengths:
    """The rows' lengths, shared by all layers of a model, and what one step derives from them."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.apart = 0
        """The last so many rows are not in slots."""
        self.unsettled = 0
        """Tokens behind each row's length that a forward wrote and that may still become part of it."""
        self.starts: list[int] = []
        """Where each row writes in this forward."""
        self.offset = mx.array([], dtype=mx.int32)
        """int32 [rows]: `starts`."""
        self.fed: list[int] | None = None
        """How many of its tokens in this forward are each row's own, the others padding behind; None if all are."""
        self._call = CPU_CALL if mx.default_device() == mx.cpu else GPU_CALL
        self._beyond: list[int] = []
        self._groups: list[Group] = []
        self._reaching: dict[int, list[Group]] = {}
        self._masks: dict[tuple[int, int | None], mx.array | None] = {}
        self._parts: dict[int, tuple[mx.array | None, list[mx.array | None]]] = {}
        self._memos: dict[Hashable, Any] = {}

    def begin(self, ahead: Sequence[int] | None = None, fed: Sequence[int] | None = None) -> None:
        """Fix offsets and groups for one forward; called before it, and after rows joined or left.

        Each row writes behind its length, or `ahead` tokens further. Where rows do not feed all the same number of
        tokens, `fed` says how many are theirs.
        """
        self.fed = None if fed is None else list(fed)
        ahead = [0] * len(self.lengths) if ahead is None else ahead
        self.starts = [length + more for length, more in zip(self.lengths, ahead, strict=True)]
        self.offset = mx.array(self.starts, dtype=mx.int32)
        self._reaching.clear()
        self._masks.clear()
        self._parts.clear()
        self._memos.clear()
        in_slots = self.starts[: self.in_slots]
        shortest = min(in_slots, default=0)
        beyond = [start - shortest for start in in_slots]
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
        return max(self.starts) + tokens

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
            more = min(self.starts[: self.in_slots], default=0) + tokens
            self._reaching[tokens] = [
                *(group._replace(reach=group.reach + more) for group in self._groups),
                *(
                    Group(row, row + 1, self.starts[row] + tokens, True)
                    for row in range(self.in_slots, len(self.starts))
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
        """Where all rows write, if it is one place."""
        return self.starts[0] if min(self.starts) == max(self.starts) else None

    def positions(self, tokens: int, slots: int, ring: int | None = None) -> mx.array:
        """Where a forward writes along a buffer of `slots` slots, int32 [slots, 1, tokens, 1]; free slots at 0.

        In a buffer that is a ring, positions begin anew after `ring` places.
        """

        def build() -> mx.array:
            starts = self.starts[: self.in_slots]
            offset = mx.array([*starts, *[0] * (slots - len(starts))], dtype=mx.int32)
            places = (offset[:, None] + mx.arange(tokens))[:, None, :, None]
            return places if ring is None else places % ring

        return self.memo(("positions", tokens, slots, ring), build)

    def memo(self, key: Hashable, build: Callable[[], T]) -> T:
        """What `build` gives, once a forward for each key."""
        if key not in self._memos:
            self._memos[key] = build()
        found: T = self._memos[key]
        return found


class NotApart(Exception):
    """A model does with keys what cannot be done where rows stand apart."""


class SlotCache(SlotBuffers):
    """One layer's KV for all rows; mlx-lm's cache interface over [slots, heads, capacity, head_dim] buffers."""

    refusal = ""
    is_state = False
    overwrites = True
    widest = None

    def __init__(self, shared: SlotLengths) -> None:
        super().__init__()
        self.shared = shared
        self.apart: list[RowBuffers] = []
        """Of the rows that are not in slots, in their order."""
        self.fetched: mx.array | None = None
        """The keys that `update_and_fetch` returned last."""
        self.attended = False
        """Whether anybody asked for a `part`."""

    @property
    def as_cache(self) -> "SlotCache":
        return self

    @property
    def offset(self) -> mx.array:
        """int32 [rows]: where each row writes."""
        return self.shared.offset

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(row.nbytes for row in self.apart)

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
            row.write(keys[own], values[own], self.shared.starts[index], STEP)
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
        starts = self.shared.starts[:rows]
        reach = max(starts) + tokens
        slots = self.reserve(rows, reach, keys, values)
        level = min(starts)
        self.put(keys, values, level if level == max(starts) else self.shared.positions(tokens, slots))
        return self.view(slice(rows), reach)

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What `update_and_fetch` returned in this forward, for layers that share this one's KV.

        Raises `NotApart` where rows stand apart, and ValueError if nothing was written.
        """
        if self.shared.apart:
            raise NotApart
        if self.fetched is None:
            raise ValueError("KV is asked for before any was written")
        return self.fetched, self.view(slice(self.shared.in_slots), self.fetched.shape[2])[1]

    def part(self, group: Group) -> tuple[mx.array, mx.array]:
        """What a group looks at: [rows, heads, reach, head_dim]. Raises ValueError if nothing was written."""
        self.attended = True
        if group.start < self.shared.in_slots:
            return self.view(slice(group.start, group.stop), group.reach)
        row = self.apart[group.start - self.shared.in_slots]
        if row.keys is None or row.values is None:
            raise ValueError("a part of KV is asked for before any was written")
        return row.keys[:, :, : group.reach], row.values[:, :, : group.reach]

    def join(self, row: KVCache) -> None:
        """Copy one prefilled row [1, heads, length, head_dim] into the slot behind the last; the caller counts it."""
        if row.keys is None or row.values is None:
            return
        index, length = self.shared.in_slots, row.offset
        keys, values = row.keys[..., :length, :], row.values[..., :length, :]
        self.reserve(index + 1, length, keys, values)
        self.put(keys, values, 0, index)

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
        self.move(
            [row for row in rows if row < in_slots],
            [length + self.shared.unsettled for length in self.shared.lengths],
        )

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

    def hold(self) -> None:
        """What a forward writes lies behind what a row holds."""

    def settle(self, whole: Sequence[bool]) -> None:
        """What is refused is never attended to, and written over by what follows."""


def _cut(mask: mx.array, group: Group) -> mx.array:
    """What a group needs of a mask; axes of length 1, or that it does not have, are all rows' or all slots'."""
    rows = mask[group.start : group.stop] if mask.ndim == 4 and mask.shape[0] > 1 else mask
    return rows[..., : group.reach]

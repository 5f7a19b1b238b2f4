"""The rows that decode together, over one cache for each layer of the model."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from pomona.workers.attention import lets_rows_stand_apart
from pomona.workers.row import Row
from pomona.workers.slots import SlotCache, SlotLengths

LONG = 1024
"""Tokens from which on a row has buffers of its own; its attention is worth a call of its own by then."""


class Batch:
    """Rows over MLX caches; row i of every cache belongs to `rows[i]`.

    Layers with mlx-lm's plain `KVCache` use slots; others use mlx-lm's own batch form of their kind. A model with a
    kind that has none runs one row at a time, on that row's own caches. Where the model lets them, rows of `long`
    tokens and more stand apart, behind the others.
    """

    def __init__(self, model: Any, long: int = LONG) -> None:
        self._model = model
        self.rows: list[Row] = []
        self.inputs = mx.array([], dtype=mx.int32)
        """int32 [rows]: the token that each row's next forward takes."""
        self._shared = SlotLengths()
        self._caches: list[Any] = []
        self.width_limit: int | None = None if batchable(make_prompt_cache(model)) else 1
        self._long = long if lets_rows_stand_apart(model) else None

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches)

    def join(self, row: Row, caches: Sequence[Any]) -> None:
        """Add a row whose tokens but the last lie in `caches` (one a layer, one row each); they are not written to."""
        length = len(row.tokens) - 1
        apart = self._long is not None and length >= self._long
        index = len(self.rows) if apart else self._shared.in_slots
        if self.width_limit == 1:
            self._caches = list(caches)
        else:
            fresh = not self._caches
            if fresh:
                self._caches = [
                    SlotCache(self._shared) if type(cache) is KVCache else type(cache).merge([cache])
                    for cache in caches
                ]
            for batched, single in zip(self._caches, caches, strict=True):
                if isinstance(batched, SlotCache):
                    (batched.join_apart if apart else batched.join)(single)
                elif not fresh:
                    batched.extend(type(single).merge([single]))
        self._shared.lengths.insert(index, length)
        self._shared.apart += apart
        self.rows.insert(index, row)
        last = mx.array([row.last_token], dtype=mx.int32)
        self.inputs = mx.concatenate([self.inputs[:index], last, self.inputs[index:]])

    def leave(self, gone: Sequence[Row]) -> list[int]:
        """Drop rows; of those in slots the last ones move into the holes, the others stay where they are.

        Returns where each row that stays was before.
        """
        leaving = {id(row) for row in gone}
        order = self._without({index for index, row in enumerate(self.rows) if id(row) in leaving})
        if not gone:
            return order
        if not order:
            self.rows, self._caches, self._shared.lengths, self._shared.apart = [], [], [], 0
            self.inputs = mx.array([], dtype=mx.int32)
            return order
        self._put_in_order(order)
        return order

    def _without(self, leaving: set[int]) -> list[int]:
        in_slots = self._shared.in_slots
        order = list(range(in_slots))
        for index in range(in_slots - 1, -1, -1):
            if index in leaving:
                place = order.index(index)
                last = order.pop()
                if place < len(order):
                    order[place] = last
        return order + [index for index in range(in_slots, len(self.rows)) if index not in leaving]

    def _put_in_order(self, order: list[int]) -> None:
        for cache in self._caches:
            if isinstance(cache, SlotCache):
                cache.keep(order)
            else:
                cache.filter(order)
        self.rows = [self.rows[index] for index in order]
        in_slots = self._shared.in_slots
        self._shared.lengths = [self._shared.lengths[index] for index in order]
        self._shared.apart = sum(index >= in_slots for index in order)
        self.inputs = self.inputs[mx.array(order)]

    def _set_apart(self) -> None:
        """Rows in slots that have become long get buffers of their own."""
        if self._long is None:
            return
        while (index := self._first_long(self._long)) is not None:
            for cache in self._caches:
                cache.set_apart(index)
            self.rows.append(self.rows[index])
            self._shared.lengths.append(self._shared.lengths[index])
            self._shared.apart += 1
            self.inputs = mx.concatenate([self.inputs, self.inputs[index : index + 1]])
            self._put_in_order(self._without({index}))

    def _first_long(self, long: int) -> int | None:
        lengths = self._shared.lengths[: self._shared.in_slots]
        return next((index for index, length in enumerate(lengths) if length >= long), None)

    def forward(self) -> mx.array:
        """Launch one forward over all rows; logits [rows, vocabulary], not evaluated yet."""
        self._set_apart()
        self._shared.begin()
        logits: mx.array = self._model(self.inputs[:, None], cache=self._caches)[:, -1, :]
        self._shared.advance(1)
        return logits

    def length_of(self, row: Row) -> int:
        """Tokens whose KV the row holds."""
        return self._shared.lengths[self._index(row)]

    def _index(self, row: Row) -> int:
        return next(index for index, other in enumerate(self.rows) if other is row)

    def extract(self, row: Row) -> list[Any]:
        """A row's caches as mlx-lm's own; the copies are launched, and what is written to the batch comes after."""
        index = self._index(row)
        caches = list(self._caches) if self.width_limit == 1 else [cache.extract(index) for cache in self._caches]
        mx.async_eval([cache.state for cache in caches])
        return caches


def batchable(caches: Sequence[Any]) -> bool:
    """True if every layer's cache has a batch form."""
    return all(hasattr(cache, "merge") for cache in caches)

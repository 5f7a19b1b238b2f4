"""The rows that decode together, over one cache for each layer of the model."""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from pomona.workers.row import Row
from pomona.workers.slots import SlotCache, SlotLengths


class Batch:
    """Rows over MLX caches; row i of every cache belongs to `rows[i]`.

    Layers with mlx-lm's plain `KVCache` use slots; others use mlx-lm's own batch form of their kind. A model with a
    kind that has none runs one row at a time, on that row's own caches.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.rows: list[Row] = []
        self.inputs = mx.array([], dtype=mx.int32)
        """int32 [rows]: the token that each row's next forward takes."""
        self._shared = SlotLengths()
        self._caches: list[Any] = []
        self.width_limit: int | None = None if batchable(make_prompt_cache(model)) else 1

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches)

    def join(self, row: Row, caches: Sequence[Any]) -> None:
        """Add a row whose tokens but the last lie in `caches` (one a layer, one row each); they are copied."""
        if self.width_limit == 1:
            self._caches = list(caches)
        elif not self._caches:
            self._caches = [
                SlotCache(self._shared) if type(cache) is KVCache else type(cache).merge([cache]) for cache in caches
            ]
            for batched, single in self._slots(caches):
                batched.join(single)
        else:
            for batched, single in zip(self._caches, caches, strict=True):
                if isinstance(batched, SlotCache):
                    batched.join(single)
                else:
                    batched.extend(type(single).merge([single]))
        self._shared.lengths.append(len(row.tokens) - 1)
        self.rows.append(row)
        self.inputs = mx.concatenate([self.inputs, mx.array([row.last_token], dtype=mx.int32)])

    def _slots(self, caches: Sequence[Any]) -> Iterator[tuple[SlotCache, KVCache]]:
        for batched, single in zip(self._caches, caches, strict=True):
            if isinstance(batched, SlotCache):
                yield batched, single

    def leave(self, gone: Sequence[Row]) -> list[int]:
        """Drop rows; the last ones move into the holes, the others stay where they are.

        Returns where each row that stays was before.
        """
        leaving = {id(row) for row in gone}
        order = list(range(len(self.rows)))
        for index in range(len(self.rows) - 1, -1, -1):
            if id(self.rows[index]) in leaving:
                place = order.index(index)
                last = order.pop()
                if place < len(order):
                    order[place] = last
        if not gone:
            return order
        if not order:
            self.rows, self._caches, self._shared.lengths = [], [], []
            self.inputs = mx.array([], dtype=mx.int32)
            return order
        for cache in self._caches:
            if isinstance(cache, SlotCache):
                cache.keep(order)
            else:
                cache.filter(order)
        self.rows = [self.rows[index] for index in order]
        self._shared.lengths = [self._shared.lengths[index] for index in order]
        self.inputs = self.inputs[mx.array(order)]
        return order

    def forward(self) -> mx.array:
        """Launch one forward over all rows; logits [rows, vocabulary], not evaluated yet."""
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

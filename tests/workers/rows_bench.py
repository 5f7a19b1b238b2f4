"""Rows in a batch, and beside each what it computes alone."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from pomona.workers.batch import LONG, Batch
from pomona.workers.row import Row
from tests.workers.engines import ask, tiny, words

CLOSE = 1e-4


class Bench:
    """A batch of rows, each with the caches that it would have alone."""

    def __init__(self, family: str, long: int = LONG) -> None:
        self.loaded = tiny(family)
        self.batch = Batch(self.loaded.model, long)
        self.alone: dict[str, list[Any]] = {}

    def join(self, name: str, length: int) -> Row:
        row = Row(ask(name, words(length, length), max_tokens=99), self.loaded.vocabulary, frozenset())
        caches, self.alone[name] = (self._prefilled(row) for _ in range(2))
        self.batch.join(row, caches)
        return row

    def _prefilled(self, row: Row) -> list[Any]:
        caches: list[Any] = make_prompt_cache(self.loaded.model)
        if row.tokens[:-1]:
            self.loaded.model(mx.array([row.tokens[:-1]]), cache=caches)
        return caches

    def step(self) -> None:
        """One greedy token for each row, whose logits are those of the row alone."""
        logits = self.batch.forward()
        for index, row in enumerate(self.batch.rows):
            own = self.loaded.model(mx.array([[row.last_token]]), cache=self.alone[row.request.id])[0, -1]
            assert mx.allclose(logits[index], own, atol=CLOSE, rtol=0).item(), row.request.id
        tokens = mx.argmax(logits, axis=-1).astype(mx.int32)
        for index, row in enumerate(self.batch.rows):
            row.commit(int(tokens[index]))
        self.batch.inputs = tokens

    def names(self) -> list[str]:
        return [row.request.id for row in self.batch.rows]

"""Rows in a batch, and beside each what it computes alone."""

import copy
import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from pomona.workers.batch import LONG, Batch
from pomona.workers.row import Row
from tests.support.tiny_model import FAMILIES
from tests.workers.engines import ask, tiny, words
from tests.workers.families import model_of

CLOSE = 1e-4
"""Two shapes of one float32 computation differ by roundings; logits are of the order of 10."""


class Bench:
    """A batch of rows, each with the caches that it would have alone."""

    def __init__(self, family: str, long: int = LONG) -> None:
        self.loaded = tiny(family if family in FAMILIES else "llama")
        self.model = self.loaded.model if family in FAMILIES else model_of(family)
        self.batch = Batch(self.model, long)
        self.alone: dict[str, list[Any]] = {}

    def join(self, name: str, length: int) -> Row:
        row = Row(ask(name, words(length, length), max_tokens=9999), self.loaded.vocabulary, frozenset())
        caches, self.alone[name] = (self._prefilled(row) for _ in range(2))
        self.batch.join(row, caches)
        return row

    def _prefilled(self, row: Row) -> list[Any]:
        caches: list[Any] = make_prompt_cache(self.model)
        if row.tokens[:-1]:
            self.model(mx.array([row.tokens[:-1]]), cache=caches)
        return caches

    def step(self) -> None:
        """One greedy token for each row, whose logits are those of the row alone."""
        logits = self.batch.forward()
        for index, row in enumerate(self.batch.rows):
            own = self.model(mx.array([[row.last_token]]), cache=self.alone[row.request.id])[0, -1]
            assert mx.allclose(logits[index], own, atol=CLOSE, rtol=0).item(), row.request.id
        tokens = mx.argmax(logits, axis=-1).astype(mx.int32)
        for index, row in enumerate(self.batch.rows):
            row.commit(int(tokens[index]))
        self.batch.inputs = tokens

    def verify(self, drafts: Sequence[Sequence[int]]) -> None:
        """Feed drafts; the logits behind each are those of the row alone."""
        flat = self.batch.verify(drafts)
        assert flat.shape[0] == len(drafts) + sum(map(len, drafts))
        done = 0
        for row, own in zip(self.batch.rows, drafts, strict=True):
            fed = [row.last_token, *own]
            caches = copy.deepcopy(self.alone[row.request.id])
            logits = self.model(mx.array([fed]), cache=caches)[0]
            difference = mx.abs(flat[done : done + len(fed)] - logits).max().item()
            assert difference <= CLOSE, (row.request.id, len(row.tokens), fed, difference)
            done += len(fed)

    def settle(self, drafts: dict[str, Sequence[int]], counts: dict[str, int], source: random.Random) -> None:
        """Rows that have verified keep so many tokens, and draw one more behind them."""
        for row in self.batch.rows:
            if count := counts.get(row.request.id, 0):
                kept = drafts[row.request.id][: count - 1]
                self.model(mx.array([[row.last_token, *kept]]), cache=self.alone[row.request.id])
                for token in (*kept, source.randrange(320)):
                    row.commit(token)
        self.batch.settle([counts.get(row.request.id, 0) for row in self.batch.rows])

    def goes_on_alone(self, row: Row) -> None:
        """What is extracted of a row holds what it says, and computes what the row alone does."""
        held, alone = self.batch.length_of(row), copy.deepcopy(self.alone[row.request.id])
        taken = copy.deepcopy(self.batch.extract(row))
        for fed, own in ((row.tokens[held:], row.tokens[-1:]), ([5], [5]), ([6, 7], [6, 7])):
            logits = self.model(mx.array([fed]), cache=taken)[0, -1]
            expected = self.model(mx.array([own]), cache=alone)[0, -1]
            assert mx.allclose(logits, expected, atol=CLOSE, rtol=0).item(), (row.request.id, held)

    def names(self) -> list[str]:
        return [row.request.id for row in self.batch.rows]

"""Prompts on their way into the batch, computed in chunks between decode steps."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from pomona.workers.prefix import PrefixStore
from pomona.workers.row import Row


class Prefill:
    """The computation of all tokens but the last of one or more rows whose tokens are identical."""

    def __init__(self, model: Any, row: Row, prefixes: PrefixStore) -> None:
        self._model = model
        self._prefixes = prefixes
        self.rows = [row]
        self._tokens = row.tokens[:-1]
        self._salt = row.request.cache_salt
        self.caches: list[Any] = make_prompt_cache(model)
        self.restored = prefixes.restore(self._tokens, self._salt, self.caches)
        self.done = self.restored
        row.cached_tokens = min(self.restored, len(row.request.prompt))

    @property
    def left(self) -> int:
        return len(self._tokens) - self.done

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    def serves(self, row: Row) -> bool:
        """True if another row can use the very same computation."""
        return row.request.cache_salt == self._salt and row.tokens[:-1] == self._tokens

    def attach(self, row: Row) -> None:
        self.rows.append(row)
        row.cached_tokens = min(len(self._tokens), len(row.request.prompt))

    def advance(self, tokens: int) -> int:
        """Compute up to `tokens` more; returns how many were computed."""
        chunk = self._tokens[self.done : self.done + tokens]
        if chunk:
            self._model(mx.array(chunk, dtype=mx.int32)[None], cache=self.caches)
            mx.eval([cache.state for cache in self.caches])
            self.done += len(chunk)
        return len(chunk)

    def store(self) -> None:
        """Hand what was computed to the cache; also what a cancelled request leaves."""
        if self.done > self.restored:
            self._prefixes.store(self._tokens[: self.done], self._salt, self.caches, self.restored)
        for row in self.rows:
            row.stored = self.done


def without(prefills: Sequence[Prefill], row: Row) -> tuple[list[Prefill], list[Prefill]]:
    """The prefills that go on without `row`, and those that nobody waits for any more."""
    for prefill in prefills:
        prefill.rows = [other for other in prefill.rows if other is not row]
    return [each for each in prefills if each.rows], [each for each in prefills if not each.rows]

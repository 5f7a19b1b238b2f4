"""A model over caches that cannot be batched, as some of mlx-lm's are."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache


class LoneCache:
    """A plain KV cache without `merge`."""

    def __init__(self) -> None:
        self._own: Any = KVCache()  # type: ignore[no-untyped-call]

    @property
    def offset(self) -> int:
        return int(self._own.offset)

    @property
    def state(self) -> Any:
        return self._own.state

    @property
    def nbytes(self) -> int:
        return int(self._own.nbytes)

    def make_mask(self, *arguments: Any, **options: Any) -> Any:
        return self._own.make_mask(*arguments, **options)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return self._own.update_and_fetch(keys, values)


class LoneCaches:
    """A model that asks for them."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def make_cache(self) -> list[LoneCache]:
        return [LoneCache() for _ in self._model.layers]

    def __call__(self, inputs: mx.array, cache: list[LoneCache]) -> Any:
        return self._model(inputs, cache=cache)

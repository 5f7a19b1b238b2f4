"""Models that go wrong at one token and are right everywhere else, and one that only remembers."""

from typing import Any

import mlx.core as mx


class Faulty:
    """Passes everything on to a real model."""

    def __init__(self, model: Any, token: int) -> None:
        self._model = model
        self.token = token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Raising(Faulty):
    """Raises when the token is in its input."""

    def __call__(self, inputs: mx.array, cache: Any) -> Any:
        if (inputs == self.token).any().item():
            raise RuntimeError("[metal::malloc] Attempting to allocate too much")
        return self._model(inputs, cache=cache)


class Poisoned(Faulty):
    """Gives NaN for what follows the token, in its own row alone."""

    def __call__(self, inputs: mx.array, cache: Any) -> Any:
        logits = self._model(inputs, cache=cache)
        return mx.where((inputs == self.token)[..., None], mx.nan, logits)


class PoisonedAt:
    """Gives NaN for what follows the token at a place of each row, counted from 0."""

    def __init__(self, model: Any, place: int) -> None:
        self._model = model
        self.place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any) -> Any:
        first = mx.array(cache[0].offset).reshape(-1, 1)
        logits = self._model(inputs, cache=cache)
        return mx.where((first + mx.arange(inputs.shape[1]) == self.place)[..., None], mx.nan, logits)


class Watched:
    """Remembers how many tokens each forward took."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.widths: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any) -> Any:
        self.widths.append(inputs.shape[1])
        return self._model(inputs, cache=cache)

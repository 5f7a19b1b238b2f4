"""The hidden states of a model's last forward, caught at its final norm; the model itself is left as it is."""

import copy
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.nn.layers.base import Module

from pomona.workers.speculation.anatomy import trunk, with_trunk


class Hidden(NamedTuple):
    """[rows, tokens, hidden] each, as the forward made them: they are computed together with its logits."""

    pre: mx.array
    """In front of the final norm."""
    post: mx.array
    """Behind it, which is what the head takes."""


class _Heard(Module):
    """A norm that keeps what went in and what came out."""

    def __init__(self, norm: Any, tap: "Tap") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.norm = norm
        self._tap = tap

    def __call__(self, hidden: mx.array) -> mx.array:
        normed: mx.array = self.norm(hidden)
        self._tap.hear(Hidden(hidden, normed))
        return normed


class Tap:
    """`model` computes what the tapped model does, out of the same weights, and lets the hidden states be taken."""

    def __init__(self, model: Any, widest: int) -> None:
        """Forwards of more than `widest` tokens are not listened to. Raises `Unfit` for a model of unknown parts."""
        self._widest = widest
        self._heard: Hidden | None = None
        own = trunk(model)
        listened = copy.copy(own)
        listened["norm"] = _Heard(own["norm"], self)
        self.model = with_trunk(model, listened)

    def hear(self, hidden: Hidden) -> None:
        self._heard = hidden if hidden.post.shape[1] <= self._widest else None

    def take(self) -> Hidden | None:
        """Of the last forward, once; None if it was taken, or was too wide."""
        heard, self._heard = self._heard, None
        return heard

"""Drafts by the first layers of the model itself, with its own final norm and head; they have no KV of their own."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from pomona.config import Method
from pomona.workers.batch import Batch
from pomona.workers.messages import RequestId
from pomona.workers.speculation.anatomy import FirstLayers, Unfit, trunk
from pomona.workers.speculation.drafting import draw_drafts
from pomona.workers.speculation.proposal import Ask, Proposal


class Layers:
    """Proposes what the first layers would say next, over the batch's own caches.

    What they write there of their drafts the next forward writes again: it feeds the same tokens.
    """

    method: Method = "layers"

    def __init__(self, model: Any, layers: int | None = None) -> None:
        """Of as many layers, or a quarter of the model's.

        Raises Unfit for a model that cannot be cut there, or whose caches do not let these layers run ahead.
        """
        self._part = FirstLayers(model, max(1, len(trunk(model)["layers"]) // 4) if layers is None else layers)
        if reason := Batch(model).peek_refusal(self._part.caches):
            raise Unfit(f"the first {self._part.caches} layers cannot run ahead of the others: {reason}")

    def propose(self, batch: Batch, asks: Sequence[Ask]) -> list[Proposal]:
        """Drafts for every row that asks."""
        if not asks:
            return []
        place = {id(row): index for index, row in enumerate(batch.rows)}
        rows = mx.array([place[id(ask.row)] for ask in asks])
        step = 0

        def peek(tokens: mx.array) -> mx.array:
            return batch.peek(self._part, tokens, step)[rows]

        def advance(drafts: mx.array) -> mx.array:
            nonlocal step
            step += 1
            tokens = mx.zeros(len(batch.rows), dtype=mx.int32)
            tokens[rows] = drafts
            return peek(tokens)

        first = peek(batch.inputs)
        return draw_drafts(asks, first, advance, first.shape[-1])

    def forget(self, request: RequestId) -> None:
        """Nothing is kept of a request."""

"""Rows that ask for drafts, and what a model alone would say next."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx

from pomona.workers.row import Row
from tests.workers.engines import ask, tiny


def row_of(name: str, prompt: Sequence[int], **sampling: Any) -> Row:
    """Greedy, unless told otherwise; it ends with nothing."""
    request = ask(name, prompt, sampling=sampling, max_tokens=9999)
    return Row(request, tiny().vocabulary, frozenset())


def commit(row: Row, tokens: Sequence[int]) -> None:
    for token in tokens:
        row.commit(token)


def continuation(model: Any, tokens: Sequence[int], count: int) -> tuple[int, ...]:
    """The model's greedy answer, each token from all before it."""
    told = list(tokens)
    for _ in range(count):
        told.append(int(mx.argmax(model(mx.array([told], dtype=mx.int32))[0, -1]).item()))
    return tuple(told[len(tokens) :])


def last_logits(model: Any, tokens: Sequence[int]) -> mx.array:
    """[1, vocabulary]."""
    logits: mx.array = model(mx.array([list(tokens)], dtype=mx.int32))[:, -1]
    return logits


HOT: Mapping[str, Any] = {"temperature": 1.0, "repeatable": False}
"""A row whose drafts are sampled."""

"""Whether a model computes with drafts in the batch what it computes without them; a short run shows it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from pomona.workers.row_caches import RowCaches

TOLERANCE = 0.1
"""What the norm of a difference may be of that of the logits: roundings of half precision are far less, and what a
model that reads its padding or a refused draft computes is far more."""


class _Case(NamedTuple):
    """A row that holds some tokens, feeds more and keeps the first `kept` of those, and feeds more again."""

    held: tuple[int, ...]
    fed: tuple[int, ...]
    kept: int
    then: tuple[int, ...]


CASES = (_Case((1, 2, 3), (4, 5, 6), 1, (7, 8)), _Case((3,), (5,), 1, (6,)), _Case((), (9, 2), 2, (4, 1, 3)))


def verify_fault(model: Any) -> str:
    """What goes wrong where `model` verifies drafts; empty if nothing does. Computes a few short forwards."""
    try:
        return _fault(model)
    except Exception as error:  # whatever a model does with caches that it does not know
        return f"a forward that verifies drafts fails: {type(error).__name__}: {error}"


def _fault(model: Any) -> str:
    rows = RowCaches(model, None)
    cases = CASES[: rows.width_limit]
    for case in cases:
        caches = make_prompt_cache(model)
        if case.held:
            model(mx.array([case.held], dtype=mx.int32), cache=caches)
        rows.join(caches, len(case.held))
    first = rows.verify([case.fed for case in cases])
    rows.settle([case.kept for case in cases])
    second = rows.verify([case.then for case in cases])
    wanted = [mx.concatenate([_alone(model, case.held, case.fed) for case in cases])]
    wanted.append(mx.concatenate([_alone(model, case.held + case.fed[: case.kept], case.then) for case in cases]))
    for what, own, other in zip(("padding", "a refused draft"), (first, second), wanted, strict=True):
        share = _norm(own - other) / _norm(other)
        if not share <= TOLERANCE:  # nor is NaN
            return f"the model computes something else behind {what}: its logits differ by {share:.0%}"
    return ""


def _alone(model: Any, held: Sequence[int], fed: Sequence[int]) -> mx.array:
    """Logits [fed, vocabulary] behind each token fed."""
    logits: mx.array = model(mx.array([[*held, *fed]], dtype=mx.int32), cache=make_prompt_cache(model))
    return logits[0, len(held) :]


def _norm(logits: mx.array) -> float:
    return float(mx.linalg.norm(logits.astype(mx.float32)).item())  # type: ignore[arg-type]  # not complex

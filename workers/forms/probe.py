"""Whether a model computes with drafts in the batch what it computes without them; a short run shows it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from pomona.workers.row_caches import RowCaches

TOLERANCE = 0.05
"""What the norm of a difference may be of that of one token's logits: roundings of half precision are less, and what a
model that reads its padding or a refused draft computes is more."""


class _Round(NamedTuple):
    """Tokens that a row feeds, of which it keeps the first `kept`."""

    fed: tuple[int, ...]
    kept: int


ROWS: tuple[tuple[_Round, ...], ...] = (
    (_Round((1, 2, 3, 4), 4), _Round((5, 6, 7, 8), 2), _Round((9, 1), 1), _Round((2, 6), 2)),
    (_Round((3,), 1), _Round((5, 2), 2), _Round((6, 4, 2), 3), _Round((7,), 1)),
    (_Round((), 0), _Round((9,), 1), _Round((4, 1, 3), 2), _Round((8, 5, 9), 3)),
)
"""In the first round each row alone computes what it comes with."""


def verify_fault(model: Any) -> str:
    """What goes wrong where `model` verifies drafts; empty if nothing does. Computes a few short forwards."""
    try:
        return _fault(model)
    except Exception as error:  # whatever a model does with caches that it does not know
        return f"a forward that verifies drafts fails: {type(error).__name__}: {error}"


def _fault(model: Any) -> str:
    caches = RowCaches(model, None)
    rows = ROWS[: caches.width_limit]
    for first, *_ in rows:
        own = make_prompt_cache(model)
        if first.fed:
            model(mx.array([first.fed], dtype=mx.int32), cache=own)
        caches.join(own, len(first.fed))
    kept = [first.fed for first, *_ in rows]
    for number in range(1, len(ROWS[0])):
        if number == len(ROWS[0]) - 1:
            caches.read()
        now = [row[number] for row in rows]
        logits = caches.verify([each.fed for each in now])
        caches.settle([each.kept for each in now])
        alone = mx.concatenate([_alone(model, held, each.fed) for held, each in zip(kept, now, strict=True)])
        share = (_norms(logits - alone) / _norms(alone)).max().item()
        if not float(share) <= TOLERANCE:  # type: ignore[arg-type]  # nor is NaN
            what = "padding" if number == 1 else "refused drafts"
            return f"the model computes something else behind {what}: its logits differ by {share:.0%}"
        kept = [held + each.fed[: each.kept] for held, each in zip(kept, now, strict=True)]
    return ""


def _alone(model: Any, held: Sequence[int], fed: Sequence[int]) -> mx.array:
    """Logits [fed, vocabulary] behind each token fed."""
    logits: mx.array = model(mx.array([[*held, *fed]], dtype=mx.int32), cache=make_prompt_cache(model))
    return logits[0, len(held) :]


def _norms(logits: mx.array) -> mx.array:
    return mx.linalg.norm(logits.astype(mx.float32), axis=-1)

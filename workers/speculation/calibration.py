"""What verifying drafts costs on this machine, measured before the first request."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from pomona.runtime.mailbox import now
from pomona.workers.batch import Batch
from pomona.workers.messages import Limits, Request, RequestId, Sampling
from pomona.workers.row import Row
from pomona.workers.speculation.speculator import Speculator
from pomona.workers.vocabulary import Vocabulary

WIDTHS = (1, 2, 3, 4, 6, 8, 12)
"""Tokens that one row feeds; between them costs lie on a line, and rows together cost what their tokens do."""
ROUNDS = 3
"""Forwards of each width, in turns; the first one may compile or allocate."""
TOKEN = 1
"""What is fed does not matter."""


def calibrate(model: Any, batch: Batch, vocabulary: Vocabulary, speculator: Speculator) -> None:
    """Tell the speculator what forwards of one row take, for as many tokens as the model's caches can verify.

    The batch is without rows before and afterwards. Without any method of drafting, or with caches that verify none,
    nothing is run.
    """
    if not speculator.methods(batch):
        return
    most = max(WIDTHS) if batch.max_drafts is None else 1 + batch.max_drafts
    row = Row(
        Request(
            id=RequestId("calibration"),
            model="",
            prompt=(TOKEN, TOKEN),
            sampling=Sampling(seed=0),
            limits=Limits(max_tokens=1 + ROUNDS * sum(WIDTHS), ignore_eos=True),
        ),
        vocabulary,
        frozenset(),
    )
    caches = make_prompt_cache(model)
    model(mx.array([[TOKEN]], dtype=mx.int32), cache=caches)
    batch.join(row, caches)
    speculator.forget_costs()
    for width in [width for width in WIDTHS if width <= most] * ROUNDS:  # what disturbs one width disturbs them all
        begin = now()
        mx.eval(batch.verify([[TOKEN] * (width - 1)]))
        speculator.calibrated(1, width, now() - begin)
        for _ in range(width):
            row.commit(TOKEN)
        batch.settle([width])
    batch.leave([row])

"""What a row drew becomes part of its answer: its accepted drafts, and the token behind them."""

import logging
from typing import NamedTuple

from pomona.workers.drawn import Draw, Walk
from pomona.workers.messages import TokenEvent
from pomona.workers.row import Row, merged
from pomona.workers.sampling.draws import Draws

log = logging.getLogger(__name__)


class Committed(NamedTuple):
    event: TokenEvent
    """Of all tokens of the walk, or of as many as come before the row's end."""
    drafted: int
    """Drafts that tell something: none behind the row's end."""
    accepted: int


def commit(walk: Walk, draws: Draws) -> Committed:
    """Append the tokens of a walk to its row; `draws` are the step's. What goes wrong ends the row, and it alone."""
    row, steps, drafted = walk
    accepted = len(steps) - 1
    events: list[TokenEvent] = []
    for index, each in enumerate(steps):
        if index == accepted:
            row.rejected += drafted - accepted
        else:
            row.accepted += 1
        events.append(_commit_one(row, each, draws))
        if row.finish is not None or row.moved:
            break
    whole = len(events) == len(steps)
    return Committed(merged(events), drafted if whole else len(events), min(accepted, len(events)))


def _commit_one(row: Row, each: Draw, draws: Draws) -> TokenEvent:
    position = len(row.committed)
    if row.fault:
        log.error("constraint failed: request=%s position=%d: %s", row.request.id, position, row.fault)
        return row.end("error", f"the constraint failed at output token {position}: {row.fault}")
    if not each.finite:
        fault = draws.fault(each.place)
        log.error("non-finite logits: request=%s position=%d: %s", row.request.id, position, fault)
        return row.end("error", f"the model's logits are not finite at output token {position}: {fault}")
    try:
        return row.commit(each.token, each.logprobs)
    except Exception as error:
        log.exception("commit failed: request=%s position=%d", row.request.id, position)
        del row.committed[position:]
        return row.end("error", f"output token {position} could not be turned into text: {error}")

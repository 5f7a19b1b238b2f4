"""The rows that decode together, over one cache for each layer of the model."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import mlx.core as mx

from pomona.workers.attention import lets_rows_stand_apart
from pomona.workers.forms.probe import verify_fault
from pomona.workers.row import Row
from pomona.workers.row_caches import FirstLayers, RowCaches

LONG = 1024
"""Tokens from which on a row has buffers of its own; its attention is worth a call of its own by then."""


class Batch:
    """Rows over MLX caches; row i of every cache belongs to `rows[i]`.

    Each kind of cache has its batch form (`workers/forms`). A model with a kind that has none runs one row at a time,
    on that row's own caches. Where the model lets them, rows of `long` tokens and more stand apart, behind the others.
    """

    def __init__(self, model: Any, long: int = LONG) -> None:
        self._model = model
        self.rows: list[Row] = []
        self.inputs = mx.array([], dtype=mx.int32)
        """int32 [rows]: the token that each row's next forward takes."""
        self._caches = RowCaches(model, long if lets_rows_stand_apart(model) else None)

    @property
    def width_limit(self) -> int | None:
        """Rows at once; None where there is no bound."""
        return self._caches.width_limit

    @property
    def nbytes(self) -> int:
        return self._caches.nbytes

    @property
    def columns(self) -> list[int]:
        """Where in the last forward each row's input lay, in the order of the rows then.

        It is behind the tokens that the row fed again, which are none where no layer holds recurrent state; its drafts
        followed.
        """
        return self._caches.columns

    def join(self, row: Row, caches: Sequence[Any]) -> None:
        """Add a row whose tokens but the last lie in `caches` (one a layer, one row each); they are not written to."""
        index = self._caches.join(caches, len(row.tokens) - 1)
        self.rows.insert(index, row)
        last = mx.array([row.last_token], dtype=mx.int32)
        self.inputs = mx.concatenate([self.inputs[:index], last, self.inputs[index:]])

    def leave(self, gone: Sequence[Row]) -> list[int]:
        """Drop rows; of those in slots the last ones move into the holes, the others stay where they are.

        Returns where each row that stays was before.
        """
        leaving = {id(row) for row in gone}
        order = self._caches.without({index for index, row in enumerate(self.rows) if id(row) in leaving})
        if gone:
            self._caches.keep(order)
            self._put_in_order(order)
        return order

    def _put_in_order(self, order: list[int]) -> None:
        self.rows = [self.rows[index] for index in order]
        self.inputs = self.inputs[mx.array(order, dtype=mx.int32)]

    def _set_apart(self) -> None:
        """Rows in slots that have become long get buffers of their own."""
        while (order := self._caches.set_apart()) is not None:
            self._put_in_order(order)

    def forward(self) -> mx.array:
        """Launch one forward over all rows; logits [rows, vocabulary], not evaluated yet.

        Rows that have become long may change their places before it. Raises ValueError if what `verify` fed is not
        settled.
        """
        self._set_apart()
        return self._caches.forward(self.inputs)

    def verify(self, drafts: Sequence[Sequence[int]]) -> mx.array:
        """Launch one forward in which each row feeds its last token and its drafts; `drafts[i]` are those of `rows[i]`.

        Returns the logits behind each of these tokens, row by row: [rows + all drafts, vocabulary], not evaluated yet.
        Rows with fewer drafts are padded, so the widest decides what it costs. What the forward wrote counts once
        `settle` has said how much of it is kept; rows may join and leave before. Raises ValueError for more drafts
        than `max_drafts`, and if what was fed before is not settled.
        """
        if len(drafts) != len(self.rows):
            raise ValueError(f"{len(drafts)} lists of drafts for {len(self.rows)} rows")
        most = max(map(len, drafts), default=0)
        if self.max_drafts is not None and most > self.max_drafts:
            raise ValueError(self.refusal or f"{most} drafts where one forward takes {self.max_drafts}")
        return self._caches.verify([[row.last_token, *own] for row, own in zip(self.rows, drafts, strict=True)])

    def settle(self, counts: Sequence[int]) -> None:
        """Of what it fed in `verify`, `rows[i]` keeps the first `counts[i]` tokens: its input and accepted drafts.

        The rows have committed by now what they drew: their last tokens are their next inputs. 0 for a row that has
        joined since; if all that fed have left, nothing is to be done. Rows that have become long may change their
        places. Raises ValueError for other counts than 1 to what was fed, and if nothing was fed.
        """
        self._caches.settle(counts)
        self.inputs = mx.array([row.last_token for row in self.rows], dtype=mx.int32)
        self._set_apart()

    @property
    def max_drafts(self) -> int | None:
        """Drafts of one row that one forward verifies at most; None where there is no bound, 0 if it cannot."""
        if self.refusal:
            return 0
        return None if self._caches.widest is None else self._caches.widest - 1

    @cached_property
    def refusal(self) -> str:
        """Why this model cannot verify drafts; empty if it can. The first look computes a few short forwards."""
        return self._caches.refusal or verify_fault(self._model)

    def peek(self, part: FirstLayers, tokens: mx.array, step: int) -> mx.array:
        """Launch a forward of `part` alone: `rows[i]` feeds `tokens[i]`, `step` tokens behind what it holds.

        `tokens` is int32 [rows]; in step 0 they are `inputs`, in the next ones what was drafted in the one before.
        Returns logits [rows, vocabulary], not evaluated yet. Lengths stay as they are: the next forward writes the
        same places again. Raises ValueError where `peek_refusal` says why, for more steps than `max_drafts`, and if
        what `verify` fed is not settled.
        """
        if reason := self.peek_refusal(part.caches):
            raise ValueError(reason)
        if self.max_drafts is not None and step >= self.max_drafts:
            raise ValueError(f"step {step} runs further ahead than the {self.max_drafts} drafts that one forward takes")
        return self._caches.peek(part, tokens, step)

    def peek_refusal(self, caches: int) -> str:
        """Why layers over the first `caches` caches cannot run ahead of the others; empty if they can."""
        return self._caches.peek_refusal(caches)

    def length_of(self, row: Row) -> int:
        """Tokens that the row's caches hold, which may be a few less than it is settled on; `extract` gives as many."""
        return self._caches.shared.lengths[self._index(row)]

    def _index(self, row: Row) -> int:
        return next(index for index, other in enumerate(self.rows) if other is row)

    def extract(self, row: Row) -> list[Any]:
        """A row's caches as mlx-lm's own; the copies are launched, and what is written to the batch comes after."""
        return self._caches.extract(self._index(row))

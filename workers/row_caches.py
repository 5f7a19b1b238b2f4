"""The caches of all layers for all rows of a batch, and the forwards over them."""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from pomona.workers.forms.kinds import batchable, forms_of
from pomona.workers.slots import SlotCache, SlotLengths

MOST_UNREAD = 8
"""Tokens that a row may feed again together with drafts; more get a forward of their own first."""


class FirstLayers(Protocol):
    """The first layers of a model, and a head behind them."""

    @property
    def caches(self) -> int:
        """So many of the model's caches, the first ones, are these layers'."""
        ...

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        """Logits [rows, tokens, vocabulary] of int32 [rows, tokens]."""
        ...


class RowCaches:
    """A form for each layer; row i of every form is row i.

    Every row's caches hold as many tokens as its length says. Where a layer holds recurrent state, a row that kept
    only a part of what it fed went back to what it held before; the tokens that it kept are unread then, and it feeds
    them again in front of its next ones.
    """

    def __init__(self, model: Any, long: int | None) -> None:
        """Rows of `long` tokens and more stand apart; with None, which all models but those of plain KV need, none."""
        self._model = model
        self._kinds: list[Any] = make_prompt_cache(model)
        self._long = long
        self.width_limit = None if batchable(self._kinds) else 1
        self.columns: list[int] = []
        """Where in the last forward each row's first token lay that it had not fed before."""
        self._start()

    def _start(self) -> None:
        self.shared = SlotLengths()
        self.forms = forms_of(self._kinds, self.shared)
        self._unread: list[list[int]] = []
        self._fed: list[list[int]] | None = None
        """What each row fed behind what was unread, in a forward that is not settled."""

    @property
    def nbytes(self) -> int:
        return sum(form.nbytes for form in self.forms)

    # rows

    def join(self, caches: Sequence[Any], length: int) -> int:
        """Add a row of `length` tokens, one cache a layer, which are not written to; returns its index."""
        apart = self._long is not None and length >= self._long
        index = len(self.shared.lengths) if apart else self.shared.in_slots
        for form, single in zip(self.forms, caches, strict=True):
            if apart and isinstance(form, SlotCache):
                form.join_apart(single)
            else:
                form.join(single)
        self.shared.lengths.insert(index, length)
        self.shared.apart += apart
        self._unread.insert(index, [])
        if self._fed is not None:
            self._fed.insert(index, [])
        return index

    def without(self, leaving: set[int]) -> list[int]:
        """An order for `keep` without some rows: of those in slots the last ones move into the holes."""
        in_slots = self.shared.in_slots
        order = list(range(in_slots))
        for index in range(in_slots - 1, -1, -1):
            if index in leaving:
                place = order.index(index)
                last = order.pop()
                if place < len(order):
                    order[place] = last
        return order + [index for index in range(in_slots, len(self.shared.lengths)) if index not in leaving]

    def keep(self, order: list[int]) -> None:
        """Row i becomes what row `order[i]` was, the others are gone. Rows in slots come first."""
        if not order:
            self._start()
            return
        for form in self.forms:
            form.keep(order)
        in_slots = self.shared.in_slots
        self.shared.lengths = [self.shared.lengths[index] for index in order]
        self.shared.apart = sum(index >= in_slots for index in order)
        self._unread = [self._unread[index] for index in order]
        if self._fed is not None:
            self._fed = [self._fed[index] for index in order]

    def set_apart(self) -> list[int] | None:
        """Let one row that has become long stand apart; where each row was before, or None if there is none."""
        lengths = self.shared.lengths
        found = (row for row in range(self.shared.in_slots) if self._long is not None and lengths[row] >= self._long)
        index = next(found, None)
        if index is None:
            return None
        for form in self.forms:
            if isinstance(form, SlotCache):
                form.set_apart(index)
        lengths.append(lengths[index])
        self._unread.append(self._unread[index])
        if self._fed is not None:
            self._fed.append(self._fed[index])
        self.shared.apart += 1
        order = self.without({index})
        self.keep(order)
        return [*order[:-1], index]

    def extract(self, index: int) -> list[Any]:
        """A row's caches as mlx-lm's own; the copies are launched, and what is written to the batch comes after."""
        caches = [form.extract(index) for form in self.forms]
        mx.async_eval([cache.state for cache in caches])
        return caches

    # forwards

    def forward(self, inputs: mx.array) -> mx.array:
        """Feed int32 [rows], one token of each row; logits [rows, vocabulary], not evaluated yet."""
        self._refuse_unsettled()
        columns = [len(tokens) for tokens in self._unread]
        if not any(columns):
            logits = self._run(inputs[:, None])[:, -1, :]
        else:
            own = mx.array(columns)
            places = mx.arange(max(columns) + 1)
            tokens = mx.where(places == own[:, None], inputs[:, None], _padded(self._unread, len(places)))
            logits = self._run(tokens, [column + 1 for column in columns])[mx.arange(len(columns)), own]
        self.columns = columns
        self._advance([column + 1 for column in columns])
        return logits

    def verify(self, feeds: Sequence[Sequence[int]]) -> mx.array:
        """Feed what each row wants to, one token or more; `settle` must follow.

        Returns the logits behind each token, row by row: [all tokens, vocabulary], not evaluated yet.
        """
        self._refuse_unsettled()
        if any(len(tokens) > MOST_UNREAD for tokens in self._unread):
            self.read()
        fed = [[*unread, *feed] for unread, feed in zip(self._unread, feeds, strict=True)]
        counts = [len(tokens) for tokens in fed]
        width = max(counts)
        for form in self.forms:
            form.hold()
        logits = self._run(_padded(fed, width), counts)
        self._fed = [list(feed) for feed in feeds]
        self.shared.unsettled = width
        self.columns = [len(tokens) for tokens in self._unread]
        flat = logits.reshape(-1, logits.shape[-1])
        wanted = [
            row * width + place
            for row, (column, count) in enumerate(zip(self.columns, counts, strict=True))
            for place in range(column, count)
        ]
        return flat if len(wanted) == len(feeds) * width else flat[mx.array(wanted)]

    def settle(self, counts: Sequence[int]) -> None:
        """Row i keeps the first `counts[i]` tokens that it fed; 0 for rows that have joined since.

        Raises ValueError for other counts than 1 to what was fed, and if nothing is to be settled.
        """
        if self._fed is None:
            if any(counts):
                raise ValueError("nothing was fed that is not settled")
            return  # all rows that fed have left
        for row, (count, feed) in enumerate(zip(counts, self._fed, strict=True)):
            if not min(1, len(feed)) <= count <= len(feed):
                raise ValueError(f"row {row} keeps {count} of {len(feed)} tokens that it fed")
        whole = [count == len(feed) for count, feed in zip(counts, self._fed, strict=True)]
        kept = [feed[:count] for count, feed in zip(counts, self._fed, strict=True)]
        for row, tokens in enumerate(kept):
            if self._holds_state and not whole[row]:
                self._unread[row] = [*self._unread[row], *tokens]
            else:
                self.shared.lengths[row] += len(self._unread[row]) + len(tokens)
                self._unread[row] = []
        for form in self.forms:
            form.settle(whole)
        self._fed = None
        self.shared.unsettled = max(map(len, self._unread))

    def read(self) -> None:
        """Feed what is unread, if anything is, and nothing else."""
        counts = [len(tokens) for tokens in self._unread]
        if not any(counts):
            return
        # For a single token of each row, models compute state without a look at which rows take it.
        self._run(_padded(self._unread, max(2, *counts)), counts)
        self._advance(counts)

    def peek(self, part: FirstLayers, tokens: mx.array, step: int) -> mx.array:
        """Feed int32 [rows] to the first layers alone, `step` tokens ahead; logits [rows, vocabulary]."""
        self._refuse_unsettled()
        ahead = [len(unread) + step for unread in self._unread]
        self.shared.begin(ahead)
        logits = part(tokens[:, None], cache=[form.as_cache for form in self.forms[: part.caches]])
        return logits[:, -1, :]

    def _run(self, tokens: mx.array, counts: Sequence[int] | None = None) -> mx.array:
        """One forward of int32 [rows, width], of which the first `counts` of each row are its own."""
        padded = counts is not None and min(counts) < tokens.shape[1]
        self.shared.begin(fed=counts if padded else None)
        logits: mx.array = self._model(tokens, cache=[form.as_cache for form in self.forms])
        return logits

    def _advance(self, counts: Sequence[int]) -> None:
        """So many tokens, those that were unread among them, are part of each row now."""
        self.shared.lengths = [held + more for held, more in zip(self.shared.lengths, counts, strict=True)]
        self.shared.unsettled = 0
        self._unread = [[] for _ in counts]

    def _refuse_unsettled(self) -> None:
        if self._fed is not None:
            raise ValueError("what the last forward verified is not settled")

    # what is possible

    @property
    def _holds_state(self) -> bool:
        return any(form.is_state for form in self.forms)

    @property
    def refusal(self) -> str:
        """Why drafts cannot be verified over caches of these kinds; empty if they can."""
        return next((form.refusal for form in self.forms if form.refusal), "")

    @property
    def widest(self) -> int | None:
        """Tokens of one row that `verify` may feed; None where there is no bound."""
        bounds = [form.widest for form in self.forms if form.widest is not None]
        return min(bounds) - (MOST_UNREAD if self._holds_state else 0) if bounds else None

    def peek_refusal(self, caches: int) -> str:
        """Why the first `caches` layers cannot run ahead of the others; empty if they can."""
        if not 1 <= caches <= len(self.forms):
            return f"there are {len(self.forms)} caches, not {caches}"
        fixed = (index for index, form in enumerate(self.forms[:caches]) if not form.overwrites)
        index = next(fixed, None)
        return "" if index is None else f"{type(self._kinds[index]).__name__} {index} cannot be written over"


def _padded(rows: Sequence[Sequence[int]], width: int) -> mx.array:
    """int32 [rows, width]; zeros behind."""
    return mx.array([[*tokens, *[0] * (width - len(tokens))] for tokens in rows], dtype=mx.int32)

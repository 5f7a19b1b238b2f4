"""Drafts by a second, smaller model that has the same tokeniser."""

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from pomona.config import Method
from pomona.workers.batch import Batch
from pomona.workers.messages import RequestId
from pomona.workers.models.error import ModelError
from pomona.workers.models.load import load
from pomona.workers.prefill import shared_beginning
from pomona.workers.speculation.anatomy import Unfit, head, trunk
from pomona.workers.speculation.draft_kv import DraftKV
from pomona.workers.speculation.drafting import draw_drafts
from pomona.workers.speculation.proposal import Ask, Proposal
from pomona.workers.vocabulary import Vocabulary

CATCH_UP = 256
"""Tokens that one call computes at most for rows that lie far behind; until then they draft nothing."""
NEAR = 8
"""Tokens that a row may lie behind to be computed together with the others."""


class _Known(NamedTuple):
    """What of a request is in the KV: its first `sure` tokens, and behind them drafts that may have been refused."""

    sure: int = 0
    drafted: tuple[int, ...] = ()


class DraftModel:
    """Proposes what a smaller model would say next. It keeps KV of its own and catches up with each row's tokens.

    Layers with a sliding window keep all tokens, so that every row can be cut back to what was accepted.
    """

    method: Method = "draft"

    def __init__(self, model: Any, width: int) -> None:
        """`width` is the number of logits of the model that verifies. Raises Unfit for layers that hold state."""
        caches = make_prompt_cache(model)
        for cache in caches:
            if type(cache) is not KVCache and not (type(cache) is RotatingKVCache and not cache.keep):
                raise Unfit(f"a draft model whose layers keep {type(cache).__name__} cannot take drafts back")
        self._width = width
        self._kv = DraftKV(len(caches))
        self._known: dict[RequestId, _Known] = {}
        self._behind: dict[RequestId, list[KVCache]] = {}
        """Rows that are being caught up with, alone."""
        try:
            self._head = head(model)
            self._trunk = trunk(model)
        except Unfit:  # then all positions go through the head
            self._trunk, self._head = model, lambda logits: logits

    @property
    def nbytes(self) -> int:
        """Bytes of KV."""
        return self._kv.nbytes + sum(int(cache.nbytes) for caches in self._behind.values() for cache in caches)

    def propose(self, batch: Batch, asks: Sequence[Ask]) -> list[Proposal]:
        """Drafts for the rows that it has caught up with; it computes `CATCH_UP` tokens at most for the others."""
        missing = {index: tokens for index, tokens in enumerate(self._catch_up(asks)) if tokens}
        proposals = [Proposal() for _ in asks]
        if not missing:
            return proposals
        ready = [asks[index] for index in missing]
        requests = [ask.row.request.id for ask in ready]
        first = self._take(dict(zip(requests, missing.values(), strict=True)))
        held = [self._kv.length(request) for request in requests]
        drafts = draw_drafts(ready, first, lambda tokens: self._advance(requests, tokens), self._width)
        for index, ask, length, drafted in zip(missing, ready, held, drafts, strict=True):
            fed = drafted.tokens[: ask.depth - 1]
            self._kv.cut(ask.row.request.id, length + len(fed))
            self._known[ask.row.request.id] = _Known(length, fed)
            proposals[index] = drafted
        return proposals

    def forget(self, request: RequestId) -> None:
        self._known.pop(request, None)
        self._behind.pop(request, None)
        self._kv.leave(request)

    def _catch_up(self, asks: Sequence[Ask]) -> list[list[int]]:
        """For each ask the tokens that its row lacks, a few; none where it still lies behind."""
        budget, missing = CATCH_UP, []
        for ask in asks:
            request, tokens = ask.row.request.id, ask.row.tokens
            held = self._agree(request, tokens)
            if budget and len(tokens) - held > NEAR:
                more = tokens[held:-1][:budget]
                self._compute_alone(request, more)
                held += len(more)
                budget -= len(more)
                self._known[request] = _Known(held)
            near = len(tokens) - held <= NEAR
            if near and request in self._behind:
                self._kv.join(request, self._behind.pop(request), held)
            missing.append(tokens[held:] if near else [])
        return missing

    def _agree(self, request: RequestId, tokens: list[int]) -> int:
        """Let go of refused drafts; how many of the row's tokens are held then, never the last one."""
        known = self._known.get(request, _Known())
        if known.sure >= len(tokens):  # a request that came again, with fewer tokens
            self.forget(request)
            known = _Known()
        held = known.sure + shared_beginning(list(known.drafted), tokens[known.sure : -1])
        if request in self._kv:
            self._kv.cut(request, held)
        else:
            self._behind.setdefault(request, self._kv.empty_row())
        self._known[request] = _Known(held)
        return held

    def _compute_alone(self, request: RequestId, tokens: list[int]) -> None:
        """Take tokens into a row that lies behind the others."""
        if request in self._kv:
            self._behind[request] = self._kv.take_out(request)
        caches = self._behind[request]
        self._trunk(mx.array([tokens], dtype=mx.int32), cache=caches)
        mx.eval([cache.state for cache in caches])

    def _take(self, missing: dict[RequestId, list[int]]) -> mx.array:
        """Logits [requests, entries] behind each one's missing tokens, which are held from now on."""
        order = self._kv.requests
        widest = max(len(tokens) for tokens in missing.values())
        fed = [missing.get(request, []) for request in order]
        inputs = mx.array([tokens + [0] * (widest - len(tokens)) for tokens in fed], dtype=mx.int32)
        hidden = self._forward(inputs, [len(tokens) for tokens in fed])
        rows = mx.array([self._kv.row(request) for request in missing])
        ends = mx.array([len(tokens) - 1 for tokens in missing.values()])
        return self._logits(hidden[rows, ends])

    def _advance(self, requests: Sequence[RequestId], tokens: mx.array) -> mx.array:
        """Logits [requests, entries] behind one more token of each."""
        order = self._kv.requests
        rows = mx.array([self._kv.row(request) for request in requests])
        inputs = mx.zeros((len(order), 1), dtype=mx.int32)
        inputs[rows, 0] = tokens
        taking = set(requests)
        hidden = self._forward(inputs, [int(request in taking) for request in order])
        return self._logits(hidden[rows, 0])

    def _forward(self, inputs: mx.array, kept: Sequence[int]) -> mx.array:
        self._kv.begin()
        hidden: mx.array = self._trunk(inputs, cache=self._kv.caches)
        self._kv.grow(kept)
        return hidden

    def _logits(self, hidden: mx.array) -> mx.array:
        logits: mx.array = self._head(hidden[:, None])
        return logits[:, 0]


def vocabulary_digest(vocabulary: Vocabulary) -> bytes:
    """32 bytes that are the same for tokenisers which give the same tokens the same ids."""
    digest = hashlib.sha256()
    for token in range(len(vocabulary)):
        name = vocabulary.name_of(token)
        digest.update(struct.pack("<I?", len(name), token in vocabulary.special) + name)
    return digest.digest()


def open_draft_model(folder: Path, target: str, vocabulary: Vocabulary, width: int) -> DraftModel:
    """The draft model in `folder` for the model `target` with this vocabulary and as many logits.

    Raises ModelError for a folder that cannot be loaded, another tokeniser, or a model that cannot draft.
    """
    model, tokenizer = load(folder)
    own = Vocabulary(tokenizer)
    if vocabulary_digest(own) != vocabulary_digest(vocabulary):
        raise ModelError(
            f"the draft model {folder.name} ({len(own)} tokens) and {target} ({len(vocabulary)} tokens) do not have "
            "the same tokeniser; choose a draft model of the same family"
        )
    try:
        return DraftModel(model, width)
    except Unfit as error:
        raise ModelError(f"{folder.name} cannot draft for {target}: {error}; choose another draft model") from error

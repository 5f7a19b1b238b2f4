"""Drafts by the prediction head that a model was trained with."""

import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from pomona.config import Method
from pomona.workers.batch import Batch
from pomona.workers.messages import RequestId
from pomona.workers.models.error import ModelError
from pomona.workers.prefill import shared_beginning
from pomona.workers.speculation.anatomy import Unfit, logit_width
from pomona.workers.speculation.corrector import Corrector, CorrectorError
from pomona.workers.speculation.draft_kv import DraftKV
from pomona.workers.speculation.drafting import draw_drafts
from pomona.workers.speculation.mtp_head import MtpHead, load_mtp_head, settle_contract
from pomona.workers.speculation.proposal import Ask, Proposal
from pomona.workers.speculation.tap import Hidden, Tap

log = logging.getLogger(__name__)

SAMPLE = (
    "Early in the morning the two of them walked down to the harbour, where the boats were being unloaded. "
    "The older one counted the crates and wrote the numbers into a small book; the younger one asked why nobody "
    "trusted the printed list. Because, he was told, a list says what somebody expected, and a count says what came. "
    "That evening they compared both, line by line, and found three differences."
)
"""A text of which a head that is used as it was trained guesses a good part."""
BACKLOG = 256
"""Forwards whose hidden states wait for the head at most; a request with more of them begins its history anew."""
WIDEST = 64
"""Tokens of a row in a forward that is listened to: a verifying one, not that of a prompt's chunk."""
WINDOW = 256
"""First drafts in a row that are all refused before the log says so."""


class _Heard(NamedTuple):
    """What a row took in one forward, the token behind its first `start` tokens and then drafts."""

    start: int
    drafts: tuple[int, ...]
    hidden: mx.array
    """[tokens, hidden]: the model's hidden states of them."""


class _Guess(NamedTuple):
    """The first of a request's last drafts, and the place in its tokens that it was made for."""

    place: int
    token: int


class Mtp:
    """Proposes what the model's own head expects. Its KV is of true hidden states only; what it guessed is cut off.

    A row's history begins with the first forward that is listened to: `model` is to be run in the place of the model,
    and `launched` to be called behind each forward of the batch.
    """

    method: Method = "mtp"

    def __init__(self, model: Any, head: MtpHead, name: str, corrector: Corrector | None = None) -> None:
        self._tap = Tap(model, WIDEST)
        self.model = self._tap.model
        """Computes what the model does."""
        self._head = head
        self._name = name
        self._corrector = corrector
        self._width = logit_width(model)
        self._kv = DraftKV(1)
        self._heard: dict[RequestId, deque[_Heard]] = {}
        self._next: dict[RequestId, int] = {}
        """The token of each request whose hidden state the head needs next."""
        self._guessed: dict[RequestId, _Guess] = {}
        self._refused = 0
        """First drafts since the last accepted one."""

    @property
    def nbytes(self) -> int:
        """Bytes of KV."""
        return self._kv.nbytes

    def launched(self, batch: Batch, drafts: Sequence[Sequence[int]] | None = None) -> None:
        """The batch has just launched `forward()`, or `verify(drafts)`; called before any other forward."""
        heard = self._tap.take()
        if heard is None:
            return
        hidden = self._head.of(heard)
        for index, row in enumerate(batch.rows):
            column = batch.columns[index]
            drafted = tuple(drafts[index]) if drafts is not None else ()
            # What was verified is not part of the row yet.
            start = batch.length_of(row) + (column if drafts is not None else -1)
            waiting = self._heard.setdefault(row.request.id, deque(maxlen=BACKLOG))
            waiting.append(_Heard(start, drafted, hidden[index, column : column + 1 + len(drafted)]))

    def propose(self, batch: Batch, asks: Sequence[Ask]) -> list[Proposal]:
        """Drafts for the rows whose last hidden state was heard."""
        proposals = [Proposal() for _ in asks]
        pairs = {}
        for index, ask in enumerate(asks):
            request, tokens = ask.row.request.id, ask.row.tokens
            self._learn(request, tokens)
            hidden = self._history(request, tokens)
            if hidden is not None:
                first = self._next[request]
                pairs[index] = hidden, tokens[first + 1 : first + 1 + hidden.shape[0]]
        if not pairs:
            return proposals
        ready = [asks[index] for index in pairs]
        drafts = self._draft(ready, list(pairs.values()))
        for index, ask, drafted in zip(pairs, ready, drafts, strict=True):
            proposals[index] = drafted
            if drafted.tokens:
                self._guessed[ask.row.request.id] = _Guess(len(ask.row.tokens), drafted.tokens[0])
        return proposals

    def forget(self, request: RequestId) -> None:
        for known in (self._heard, self._next, self._guessed):
            known.pop(request, None)
        self._kv.leave(request)

    def _learn(self, request: RequestId, tokens: list[int]) -> None:
        """Notice a head whose drafts are never accepted."""
        guess = self._guessed.pop(request, None)
        if guess is None or guess.place >= len(tokens):
            return
        if tokens[guess.place] == guess.token:
            self._refused = 0
            return
        self._refused += 1
        if self._refused == WINDOW:
            log.warning("mtp-useless model=%s: its head's last %d first drafts were refused", self._name, WINDOW)

    def _history(self, request: RequestId, tokens: list[int]) -> mx.array | None:
        """Hidden states [tokens, hidden] that the head has not taken yet, up to the one before the last token's.

        None if that one was not heard. A gap ends the history: the head begins anew behind it.
        """
        parts: list[mx.array] = []
        start = stop = self._next.get(request, 0)
        for place, drafts, hidden in self._heard.pop(request, ()):
            if place < stop:
                continue
            if place > stop or request not in self._kv:
                parts, start, stop = [], place, place
                self._begin(request)
            true = 1 + shared_beginning(list(drafts), tokens[place + 1 : -1])
            parts.append(hidden[:true])
            stop += true
        self._next[request] = start
        if stop != len(tokens) - 1:
            self._kv.leave(request)
            del self._next[request]
            return None
        return mx.concatenate(parts) if parts else None

    def _begin(self, request: RequestId) -> None:
        if request in self._kv:
            self._kv.cut(request, 0)
        else:
            self._kv.join(request, self._kv.empty_row(), 0)

    def _draft(self, asks: Sequence[Ask], pairs: Sequence[tuple[mx.array, list[int]]]) -> list[Proposal]:
        """The head takes each row's history, and then what it guesses, which is cut off again."""
        requests = [ask.row.request.id for ask in asks]
        rows = mx.array([self._kv.row(request) for request in requests])
        counts = dict(zip(requests, (len(tokens) for _, tokens in pairs), strict=True))
        hidden, tokens = self._padded(dict(zip(requests, pairs, strict=True)))
        made = self._forward(hidden, tokens, [counts.get(request, 0) for request in self._kv.requests])
        ends = mx.array([count - 1 for count in counts.values()])
        last = Hidden(made.pre[rows, ends][:, None], made.post[rows, ends][:, None])
        held = {request: self._kv.length(request) for request in requests}
        for request in requests:
            self._next[request] += counts[request]
        depth = 0

        def advance(drafts: mx.array) -> mx.array:
            nonlocal last, depth
            depth += 1
            given = self._head.of(last)
            if self._corrector is not None and depth <= self._corrector.depths:
                given = self._corrector(given, depth)
            every = mx.zeros((len(self._kv.requests), 1, given.shape[-1]), dtype=given.dtype)
            every[rows] = given
            inputs = mx.zeros((len(self._kv.requests), 1), dtype=mx.int32)
            inputs[rows, 0] = drafts
            made = self._forward(every, inputs, [int(request in held) for request in self._kv.requests])
            last = Hidden(made.pre[rows], made.post[rows])
            return self._head.logits(last)[:, 0]

        proposals = draw_drafts(asks, self._head.logits(last)[:, 0], advance, self._width)
        for request, length in held.items():
            self._kv.cut(request, length)
        return proposals

    def _padded(self, pairs: dict[RequestId, tuple[mx.array, list[int]]]) -> tuple[mx.array, mx.array]:
        """Hidden states [rows, widest, hidden] and tokens of all rows of the KV; those that take nothing are zero."""
        widest = max(len(tokens) for _, tokens in pairs.values())
        like = next(iter(pairs.values()))[0]
        hidden, tokens = [], []
        for request in self._kv.requests:
            own, follow = pairs.get(request, (like[:0], []))
            hidden.append(mx.pad(own, [(0, widest - len(follow)), (0, 0)]))
            tokens.append(follow + [0] * (widest - len(follow)))
        return mx.stack(hidden), mx.array(tokens, dtype=mx.int32)

    def _forward(self, hidden: mx.array, tokens: mx.array, kept: Sequence[int]) -> Hidden:
        self._kv.begin()
        made = self._head(hidden, tokens, self._kv.caches[0])
        self._kv.grow(kept)
        return made


def open_mtp(
    folder: Path, model: Any, text: Sequence[int], name: str, corrector: Corrector | None = None
) -> Mtp | None:
    """The proposer of a model that brings its head along; None for one without, or with one that cannot be used.

    `text` is a sample of 3 tokens or more, such as those of `SAMPLE`, by which the head's contract is checked. What is
    wrong with a head, or a corrector, is reported: the model serves without it.
    """
    try:
        head = load_mtp_head(folder, model)
        if head is None:
            return None
        settle_contract(head, model, text, name)
        return Mtp(model, head, name, _usable(corrector, head, name))
    except (Unfit, ModelError) as error:
        log.warning("mtp-unusable model=%s: %s", name, error)
        return None


def _usable(corrector: Corrector | None, head: MtpHead, name: str) -> Corrector | None:
    """The corrector, if it is for such a head and was measured to pay."""
    if corrector is None:
        return None
    try:
        corrector.check(head.norm.weight.shape[0], head.contract.hidden)
    except CorrectorError as error:
        log.warning("corrector-unusable model=%s: %s", name, error)
        return None
    log.info("corrector model=%s kind=%s used=%s", name, corrector.account.kind, corrector.pays)
    return corrector if corrector.pays else None

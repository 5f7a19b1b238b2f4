"""What a model says to prompts, with its hidden states, and how far its prediction head follows: ground for fits."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import KVCache, make_prompt_cache

from pomona.workers.messages import RequestId
from pomona.workers.speculation.anatomy import Unfit
from pomona.workers.speculation.corrector import Corrector
from pomona.workers.speculation.draft_kv import DraftKV
from pomona.workers.speculation.mtp_head import MtpHead
from pomona.workers.speculation.tap import Tap

LONGEST = 2048
"""Tokens of a prompt, at most; what comes before is left out."""


class Answer(NamedTuple):
    """A prompt and the model's greedy answer to it."""

    tokens: list[int]
    begin: int
    """Tokens of the prompt."""
    hidden: mx.array
    """[tokens - 1, hidden]: what the head is given, of all tokens but the last."""


class Depth(NamedTuple):
    """The head's guesses at one depth, of every window of an answer."""

    guessed: npt.NDArray[np.float32]
    """[windows, hidden]: the guessed states; `true` are the model's own."""
    true: npt.NDArray[np.float32]
    reached: npt.NDArray[np.bool_]
    """[windows]: all drafts before this one were right."""
    right: npt.NDArray[np.bool_]
    """[windows]: so was this one."""


class Listener:
    """Runs a model greedily and keeps the hidden states that its head is given."""

    def __init__(self, model: Any, head: MtpHead, eos: frozenset[int]) -> None:
        self._tap = Tap(model, LONGEST)
        self._head = head
        self._eos = eos

    def answer(self, prompt: Sequence[int], count: int) -> Answer:
        """At most `count` tokens, fewer where it ends. Raises ValueError for an empty prompt."""
        tokens = list(prompt[-LONGEST:])
        if not tokens:
            raise ValueError("a prompt without tokens has no answer")
        begin, caches, parts = len(tokens), make_prompt_cache(self._tap.model), []
        fed = tokens
        for _ in range(count):
            logits = self._tap.model(mx.array([fed], dtype=mx.int32), cache=caches)
            heard = self._tap.take()
            if heard is None:
                raise Unfit("the model's hidden states cannot be heard")
            parts.append(self._head.of(heard)[0])
            fed = mx.argmax(logits[:, -1], axis=-1).tolist()  # type: ignore[assignment]  # one row
            mx.eval(parts[-1])
            tokens = tokens + fed
            if fed[0] in self._eos:
                break
        return Answer(tokens, begin, mx.concatenate(parts))


def windows(answer: Answer, depth: int, most: int) -> list[int]:
    """Places in an answer from which the head may guess `depth` tokens that are known, at most so many, spread out."""
    places = range(max(1, answer.begin - 1), len(answer.tokens) - 1 - depth)
    step = -(-len(places) // most) if places else 1
    return list(places[::step])


def follow(
    head: MtpHead, answer: Answer, places: Sequence[int], depth: int, corrector: Corrector | None = None
) -> list[Depth]:
    """What the head guesses at depths 1 to `depth`, behind the true hidden states before each place and with the true
    tokens after it, as it would while its drafts are accepted. Its guesses are corrected before it goes on from them.
    """
    history = KVCache()
    before = answer.tokens[1:]
    head(answer.hidden[None], mx.array([before], dtype=mx.int32), history)
    kv = DraftKV(1)
    for place in places:
        kv.join(RequestId(str(place)), [_beginning(history, place)], place)
    at = np.array(places)
    tokens = np.array(answer.tokens)
    given, reached = answer.hidden[mx.array(at)][:, None], np.ones(len(at), np.bool_)
    found = []
    for each in range(1, depth + 1):
        kv.begin()
        made = head(given, mx.array(tokens[at + each], dtype=mx.int32)[:, None], kv.caches[0])
        kv.grow([1] * len(at))
        drafts = np.array(mx.argmax(head.logits(made)[:, 0], axis=-1))
        right = drafts == tokens[at + each + 1]
        given = head.of(made)
        found.append(Depth(_array(given[:, 0]), _array(answer.hidden[mx.array(at + each)]), reached, right))
        reached = reached & right
        if corrector is not None and each <= corrector.depths:
            given = corrector(given, each)
    return found


def _beginning(history: KVCache, length: int) -> KVCache:
    """The first tokens of a row's KV."""
    part = KVCache()
    if history.keys is not None and history.values is not None:
        part.keys, part.values, part.offset = history.keys[..., :length, :], history.values[..., :length, :], length
    return part


def _array(hidden: mx.array) -> npt.NDArray[np.float32]:
    return np.array(hidden.astype(mx.float32))


def reached_pairs(
    depths: Sequence[Depth],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Of one depth of all answers, the guessed and the true states [pairs, hidden] that a round would have come to."""
    guessed = [depth.guessed[depth.reached] for depth in depths]
    return np.concatenate(guessed), np.concatenate([depth.true[depth.reached] for depth in depths])


def shares(depths: Sequence[Sequence[Depth]]) -> tuple[float, ...]:
    """For each depth the share of right drafts, of those that were reached, over all answers; 0 where none was."""
    totals = []
    for each in zip(*depths, strict=True):
        reached = sum(int(depth.reached.sum()) for depth in each)
        right = sum(int((depth.reached & depth.right).sum()) for depth in each)
        totals.append(right / reached if reached else 0.0)
    return tuple(totals)

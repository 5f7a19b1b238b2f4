"""Drafts out of a model's logits, one after the other: what each row drafts, and what it was drawn from."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx

from pomona.runtime.wire import replace
from pomona.workers.messages import Sampling
from pomona.workers.randomness import Purpose, uniform
from pomona.workers.sampling.draw import distribution, draw
from pomona.workers.sampling.invert import sample
from pomona.workers.sampling.law import RowLaw
from pomona.workers.speculation.proposal import Ask, Proposal

ABSENT = -1e30
"""The logit of a token that the drafting model does not have; finite, and its probability is 0."""


class _Step(NamedTuple):
    """One draft of every row."""

    tokens: mx.array
    """int32 [rows]."""
    finite: mx.array
    """bool [rows]: false where a logit was NaN or infinitely great, or none was finite."""
    distributions: mx.array | None
    """float32 [rows that sample, vocabulary]."""


def draw_drafts(
    asks: Sequence[Ask], logits: mx.array, advance: Callable[[mx.array], mx.array], width: int
) -> list[Proposal]:
    """A proposal for each ask, as deep as it asks; waits for the device once, at the end.

    `logits` [asks, entries] are of the first draft; `advance` takes the drafts, int32 [asks], and gives the logits of
    the next ones. They are cut or filled up to `width` entries, those of the model that will verify. Greedy rows and
    repeatable ones draft the likeliest token; the others sample, by their own law, and the proposal tells what from.
    A row drafts nothing from logits that are not finite.
    """
    laws = [ask.row.law() for ask in asks]
    steps: list[_Step] = []
    for index in range(max(ask.depth for ask in asks)):
        if steps:
            logits = advance(steps[-1].tokens)
        steps.append(_draw(logits.astype(mx.float32), [_later(law, index) for law in laws], width))
    mx.eval([array for step in steps for array in step if array is not None])
    return _proposals(asks, steps, [index for index, law in enumerate(laws) if samples(law.sampling)])


def samples(sampling: Sampling) -> bool:
    """Whether a row's drafts are sampled; else they are the likeliest tokens."""
    return not sampling.repeatable and sampling.temperature > 0


def _later(law: RowLaw, index: int) -> RowLaw:
    """The row's law `index` tokens on, as far as it is known before they are drawn."""
    return law._replace(position=law.position + index, logprobs=None, mask=None if index else law.mask, drafted=None)


def _draw(logits: mx.array, laws: Sequence[RowLaw], width: int) -> _Step:
    finite = mx.isfinite(logits.max(axis=-1))  # a NaN is the greatest of its row
    logits = fitted(logits, width)
    sampling = [index for index, law in enumerate(laws) if samples(law.sampling)]
    if len(sampling) == len(laws):
        tokens, distributions = _sample(logits, laws)
        return _Step(tokens, finite, distributions)
    likeliest = [law._replace(sampling=replace(law.sampling, temperature=0.0)) for law in laws]
    tokens = draw(logits, likeliest).tokens
    if not sampling:
        return _Step(tokens, finite, None)
    where = mx.array(sampling)
    tokens[where], distributions = _sample(logits[where], [laws[index] for index in sampling])
    return _Step(tokens, finite, distributions)


def _sample(logits: mx.array, laws: Sequence[RowLaw]) -> tuple[mx.array, mx.array]:
    probabilities = distribution(logits, laws)
    numbers = [uniform(law.sampling.seed, law.position, Purpose.DRAFT) for law in laws]
    return sample(probabilities, numbers), probabilities


def fitted(logits: mx.array, width: int) -> mx.array:
    """Logits [rows, entries] over the first `width` tokens; those that they lack have probability 0."""
    rows, entries = logits.shape
    if entries >= width:
        return logits[:, :width]
    return mx.concatenate([logits, mx.full((rows, width - entries), ABSENT, dtype=logits.dtype)], axis=-1)


def _proposals(asks: Sequence[Ask], steps: Sequence[_Step], sampling: Sequence[int]) -> list[Proposal]:
    tokens: list[list[int]] = mx.stack([step.tokens for step in steps]).T.tolist()  # type: ignore[assignment]
    finite: list[list[bool]] = mx.stack([step.finite for step in steps]).T.tolist()  # type: ignore[assignment]
    proposals = []
    for index, (ask, drafted, sound) in enumerate(zip(asks, tokens, finite, strict=True)):
        depth = [*sound[: ask.depth], False].index(False)
        own = None
        if depth and index in sampling:
            place = sampling.index(index)
            own = mx.stack([step.distributions[place] for step in steps[:depth] if step.distributions is not None])
        proposals.append(Proposal(tuple(drafted[:depth]), own))
    return proposals

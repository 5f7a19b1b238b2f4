"""A proposer that knows what a model will say, and tells it with mistakes."""

import random
from collections.abc import Mapping, Sequence

import mlx.core as mx

from pomona.config import Method
from pomona.workers.batch import Batch
from pomona.workers.messages import RequestId
from pomona.workers.speculation.proposal import Ask, Proposal


class Scripted:
    """Drafts a row's known answer, each token wrong with the chance `wrong`; behind its end, anything.

    With `sampled` its drafts come with the distributions that they are drawn from.
    """

    method: Method = "draft"

    def __init__(
        self, answers: Mapping[str, Sequence[int]], wrong: float = 0.3, vocabulary: int = 320, sampled: bool = False
    ) -> None:
        self.answers = answers
        self.wrong = wrong
        self.forgotten: list[RequestId] = []
        self._vocabulary = vocabulary
        self._sampled = sampled
        self._source = random.Random(0)

    def propose(self, batch: Batch, asks: Sequence[Ask]) -> list[Proposal]:
        assert all(ask.row in batch.rows for ask in asks)
        return [self._sampled_drafts(ask) if self._samples(ask) else Proposal(self._drafts(ask)) for ask in asks]

    def forget(self, request: RequestId) -> None:
        self.forgotten.append(request)

    def _samples(self, ask: Ask) -> bool:
        sampling = ask.row.request.sampling
        return self._sampled and sampling.temperature > 0 and not sampling.repeatable

    def _drafts(self, ask: Ask) -> tuple[int, ...]:
        known = list(self.answers.get(ask.row.request.id, ()))[len(ask.row.committed) :][: ask.depth]
        known += [0] * (ask.depth - len(known))
        count = self._source.randint(0, ask.depth)
        return tuple(
            self._source.randrange(self._vocabulary) if self._source.random() < self.wrong else token
            for token in known[:count]
        )

    def _sampled_drafts(self, ask: Ask) -> Proposal:
        weights = [[self._source.random() ** 4 for _ in range(self._vocabulary)] for _ in range(ask.depth)]
        rows = [[each / sum(row) for each in row] for row in weights]
        tokens = tuple(self._source.choices(range(self._vocabulary), row)[0] for row in rows)
        return Proposal(tokens, mx.array(rows))

"""Tokens that a step drew and that nobody has read yet: they may still be on their way out of the device."""

from collections.abc import Iterator
from typing import NamedTuple

from pomona.workers.messages import PositionLogprobs, TokenLogprob
from pomona.workers.row import Row
from pomona.workers.sampling.draws import Draws
from pomona.workers.vocabulary import Vocabulary


class Draw(NamedTuple):
    """What one row drew."""

    row: Row
    token: int
    finite: bool
    """False if the row's logits were not; the token means nothing then."""
    logprobs: PositionLogprobs | None


class Drawn(NamedTuple):
    """Tokens drawn by the last step, not committed yet; `rows[i]` drew `draws.tokens[i]`."""

    rows: list[Row]
    draws: Draws

    def finite(self, row: Row) -> bool:
        """False if the row's logits were not; waits for them."""
        return all(bool(self.draws.finite[index].item()) for index, each in enumerate(self.rows) if each is row)

    def read(self, vocabulary: Vocabulary) -> Iterator[Draw]:
        """Each row's draw; waits for the device."""
        tokens: list[int] = self.draws.tokens.tolist()  # type: ignore[assignment]  # one-dimensional
        finite: list[bool] = self.draws.finite.tolist()  # type: ignore[assignment]
        for each in zip(self.rows, tokens, finite, self._logprobs(tokens, vocabulary), strict=True):
            yield Draw(*each)

    def _logprobs(self, tokens: list[int], vocabulary: Vocabulary) -> list[PositionLogprobs | None]:
        draws = self.draws
        if draws.chosen is None:
            return [None] * len(tokens)
        chosen: list[float] = draws.chosen.tolist()  # type: ignore[assignment]
        top_tokens: list[list[int]] = [] if draws.top_tokens is None else draws.top_tokens.tolist()  # type: ignore[assignment]
        top_values: list[list[float]] = [] if draws.top_logprobs is None else draws.top_logprobs.tolist()  # type: ignore[assignment]

        def entry(token: int, value: float) -> TokenLogprob:
            return TokenLogprob(token, vocabulary.name_of(token), value)

        read: list[PositionLogprobs | None] = []
        for index, row in enumerate(self.rows):
            wanted = row.request.logprobs
            if wanted is None:
                read.append(None)
                continue
            top = zip(top_tokens[index][:wanted], top_values[index][:wanted], strict=True) if wanted else ()
            read.append(
                PositionLogprobs(
                    entry(tokens[index], chosen[index]), tuple(entry(token, value) for token, value in top)
                )
            )
        return read

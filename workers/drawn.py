"""Tokens that a step drew and that nobody has read yet: they may still be on their way out of the device."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pomona.workers.messages import PositionLogprobs, TokenLogprob
from pomona.workers.row import Row
from pomona.workers.sampling.draws import Draws
from pomona.workers.vocabulary import Vocabulary


class Draw(NamedTuple):
    """What one row drew at one position."""

    token: int
    finite: bool
    """False if the token means nothing."""
    logprobs: PositionLogprobs | None
    place: int
    """Which of the step's positions it is."""


class Walk(NamedTuple):
    """What one row may commit: accepted drafts, and behind them one token that was no draft."""

    row: Row
    draws: list[Draw]
    drafted: int
    """Drafts that were verified."""


class Drawn(NamedTuple):
    """Drawn by the last step, not committed yet.

    Row by row, `draws` has a position for each token that the row fed: its last one and its drafts.
    """

    rows: list[Row]
    draws: Draws
    began: float
    """When its forward was launched, or could have been, in seconds of the worker's clock."""
    drafts: Sequence[Sequence[int]] = ()
    """Of each row; empty if nobody drafted."""
    waited: bool = False
    """It was launched only when all tokens before it were known."""
    ended: float | None = None
    """When it was computed, if that is known, since it is read much later."""

    @property
    def width(self) -> int:
        """Tokens that the widest row fed."""
        return 1 + max(map(len, self.drafts), default=0)

    def finite(self, row: Row) -> bool:
        """False if the row's logits were not; waits for them."""
        return all(
            bool(self.draws.finite[place : place + 1 + len(drafts)].all().item())
            for each, place, drafts in self._places()
            if each is row
        )

    def _places(self) -> Iterator[tuple[Row, int, Sequence[int]]]:
        """Each row, its first position and its drafts."""
        place = 0
        for index, row in enumerate(self.rows):
            drafts = self.drafts[index] if self.drafts else ()
            yield row, place, drafts
            place += 1 + len(drafts)

    def read(self, vocabulary: Vocabulary) -> list[Walk]:
        """What each row may commit; waits for the device."""
        tokens: list[int] = self.draws.tokens.tolist()  # type: ignore[assignment]  # one-dimensional
        finite: list[bool] = self.draws.finite.tolist()  # type: ignore[assignment]
        logprobs = self._logprobs(tokens, vocabulary)
        walks = []
        for row, first, drafts in self._places():
            accepted = 0
            while accepted < len(drafts) and finite[first + accepted] and tokens[first + accepted] == drafts[accepted]:
                accepted += 1
            places = range(first, first + accepted + 1)
            draws = [Draw(tokens[place], finite[place], logprobs[place], place) for place in places]
            walks.append(Walk(row, draws, len(drafts)))
        return walks

    def _logprobs(self, tokens: list[int], vocabulary: Vocabulary) -> list[PositionLogprobs | None]:
        draws = self.draws
        if draws.chosen is None:
            return [None] * len(tokens)
        chosen: list[float] = draws.chosen.tolist()  # type: ignore[assignment]
        top_tokens: list[list[int]] = [] if draws.top_tokens is None else draws.top_tokens.tolist()  # type: ignore[assignment]
        top_values: list[list[float]] = [] if draws.top_logprobs is None else draws.top_logprobs.tolist()  # type: ignore[assignment]

        def entry(token: int, value: float) -> TokenLogprob:
            return TokenLogprob(token, vocabulary.name_of(token), value)

        def listed(place: int, wanted: int) -> PositionLogprobs:
            top = zip(top_tokens[place][:wanted], top_values[place][:wanted], strict=True) if wanted else ()
            return PositionLogprobs(
                entry(tokens[place], chosen[place]), tuple(entry(token, value) for token, value in top)
            )

        read: list[PositionLogprobs | None] = []
        for row, first, drafts in self._places():
            wanted = row.request.logprobs
            places = range(first, first + 1 + len(drafts))
            read += [None if wanted is None else listed(place, wanted) for place in places]
        return read

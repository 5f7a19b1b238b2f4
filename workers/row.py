"""One request inside a worker: its committed tokens and everything that follows from them."""

from collections import Counter
from collections.abc import Sequence

from pomona.workers.messages import Delta, Finish, FinishReason, PositionLogprobs, Request, TokenEvent, Usage
from pomona.workers.sampling.law import Adjustment, RowLaw
from pomona.workers.text import TextStream
from pomona.workers.vocabulary import Vocabulary

FORBIDDEN = -1e30
"""Added to a logit that must not be drawn; finite, so that the row stays finite."""


class Row:
    """A pure function of the request and the tokens committed so far; `commit` is the only transition.

    The tokens that the request brought along are fed through the same transition, without events.
    """

    def __init__(self, request: Request, vocabulary: Vocabulary, eos: frozenset[int]) -> None:
        self.request = request
        self.committed: list[int] = []
        self.cached_tokens = 0
        """Prompt tokens that were restored instead of computed."""
        self.finish: Finish | None = None
        self.stored = 0
        """Tokens from the start whose blocks were handed to the cache."""
        self.accepted = 0
        """Committed tokens that were drafts."""
        self.rejected = 0
        """Drafts that were verified in vain."""
        self._vocabulary = vocabulary
        self._ends = (frozenset() if request.limits.ignore_eos else eos) | frozenset(request.limits.stop_token_ids)
        self._text = TextStream(request.limits.stop, strip_first_space=vocabulary.strips_first_space)
        self._counts: Counter[int] = Counter()
        self._spared = tuple(self._ends | vocabulary.newlines) if request.sampling.xtc_probability else ()
        self._prompt_tokens = frozenset(request.prompt) if request.sampling.repetition_penalty != 1.0 else frozenset()
        for token in request.committed:
            if self.finish is None:
                self.commit(token)

    @property
    def tokens(self) -> list[int]:
        """Prompt and committed tokens."""
        return [*self.request.prompt, *self.committed]

    @property
    def last_token(self) -> int:
        """The token that the next forward takes."""
        return self.committed[-1] if self.committed else self.request.prompt[-1]

    @property
    def remaining(self) -> int:
        return self.request.limits.max_tokens - len(self.committed)

    def usage(self) -> Usage:
        return Usage(
            len(self.request.prompt),
            len(self.committed),
            self.cached_tokens,
            accepted_tokens=self.accepted,
            rejected_tokens=self.rejected,
        )

    def law(self) -> RowLaw:
        """How the next token is drawn."""
        return self._law(len(self.committed))

    def laws(self, drafts: Sequence[int]) -> list[RowLaw]:
        """How the next token is drawn, and the one behind each of `drafts`, as if those before it were committed."""
        laws = [self.law()]
        for count, draft in enumerate(drafts, 1):
            self._counts[draft] += 1
            laws.append(self._law(len(self.committed) + count))
        for draft in drafts:
            self._uncount(draft)
        return laws

    def _uncount(self, token: int) -> None:
        self._counts[token] -= 1
        if not self._counts[token]:
            del self._counts[token]

    def _law(self, position: int) -> RowLaw:
        return RowLaw(
            self.request.sampling, position, self._adjustment(position), self.request.logprobs, spared=self._spared
        )

    def _adjustment(self, position: int) -> Adjustment | None:
        sampling, limits = self.request.sampling, self.request.limits
        penalised = (
            sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        )
        early = position < limits.min_tokens
        if not penalised and not sampling.logit_bias and not (early and self._ends):
            return None
        touched: set[int] = set(sampling.logit_bias)
        if penalised:
            touched |= self._prompt_tokens | self._counts.keys()
        if early:
            touched |= self._ends
        tokens = sorted(touched)
        repeated = self._prompt_tokens | self._counts.keys()
        return Adjustment(
            tokens,
            [sampling.repetition_penalty if token in repeated else 1.0 for token in tokens],
            [
                sampling.logit_bias.get(token, 0.0)
                - (sampling.presence_penalty if self._counts[token] else 0.0)
                - sampling.frequency_penalty * self._counts[token]
                + (FORBIDDEN if early and token in self._ends else 0.0)
                for token in tokens
            ],
        )

    def commit(self, token: int, logprobs: PositionLogprobs | None = None) -> TokenEvent:
        """Append one token. Raises ValueError after the end."""
        if self.finish is not None:
            raise ValueError(f"request {self.request.id} has ended")
        position = len(self.committed)
        may_stop = position + 1 >= self.request.limits.min_tokens
        self.committed.append(token)
        self._counts[token] += 1
        if token in self._ends and position >= self.request.limits.min_tokens:
            return self._event(position, (token,), self._end("stop"))
        piece = self._text.push(self._vocabulary.bytes_of(token), may_stop=may_stop)
        text = piece.text
        if piece.stop is not None:
            self._finish("stop", stop_text=piece.stop)
        elif len(self.committed) >= self.request.limits.max_tokens:
            text += self._end("length")
        return self._event(position, (token,), text, () if logprobs is None else (logprobs,))

    def end(self, reason: FinishReason, message: str = "") -> TokenEvent:
        """End it without a token; text that was withheld is delivered."""
        return self._event(len(self.committed), (), self._end(reason, message))

    def replayed(self) -> TokenEvent:
        """The end that the committed tokens had already reached, told again."""
        return self._event(len(self.committed), (), "")

    def _end(self, reason: FinishReason, message: str = "") -> str:
        """What was withheld; it may turn out to hold a stop string, which then is the reason."""
        piece = self._text.flush()
        if piece.stop is not None and reason in ("stop", "length"):
            self._finish("stop", stop_text=piece.stop)
        else:
            self._finish(reason, message=message)
        return piece.text

    def _finish(self, reason: FinishReason, *, stop_text: str | None = None, message: str = "") -> None:
        self.finish = Finish(reason=reason, usage=self.usage(), stop_text=stop_text, message=message)

    def _event(
        self, position: int, tokens: tuple[int, ...], text: str, logprobs: Sequence[PositionLogprobs] = ()
    ) -> TokenEvent:
        return TokenEvent(
            id=self.request.id,
            position=position,
            tokens=tokens,
            deltas=(Delta("content", text),) if text else (),
            logprobs=tuple(logprobs),
            finish=self.finish,
        )

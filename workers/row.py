"""One request inside a worker: its committed tokens and everything that follows from them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pomona.workers.constraint.error import ConstraintError
from pomona.workers.constraint.matcher import Matcher
from pomona.workers.constraint.tokens import Words
from pomona.workers.messages import Delta, Finish, FinishReason, PositionLogprobs, Request, TokenEvent, Usage
from pomona.workers.sampling.law import Adjustment, RowLaw
from pomona.workers.text import TextStream
from pomona.workers.vocabulary import Vocabulary

FORBIDDEN = -1e30
"""Added to a logit that must not be drawn; finite, so that the row stays finite."""
NOTHING: Words = np.zeros(0, dtype=np.uint32)
"""The mask that allows no token: nothing can be drawn."""


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
        self.fault = ""
        """Why no token can follow: its grammar failed. The row has nothing left but its end."""
        self._vocabulary = vocabulary
        self._constrained = request.constraint is not None
        self._matcher: Matcher | None = None
        self._eos = eos
        ends = frozenset() if request.limits.ignore_eos and not self._constrained else eos
        self._ends = ends | frozenset(request.limits.stop_token_ids)
        # A grammar counts every byte, the first blank too.
        strips = vocabulary.strips_first_space and not self._constrained
        self._text = TextStream(request.limits.stop, strip_first_space=strips)
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

    def constrain(self, matcher: Matcher) -> None:
        """Follow a grammar from here on; it stands behind the committed tokens, and may be over with them."""
        self._matcher = matcher
        if matcher.over and self.finish is None:
            self._end("stop")

    def legal(self, drafts: Sequence[int]) -> int:
        """How many of `drafts`, from the first on, the row's constraint allows."""
        if not self._constrained:
            return len(drafts)
        try:
            return self._follow().legal(drafts)
        except ConstraintError as error:
            self.fault = str(error)
            return 0

    def law(self) -> RowLaw:
        """How the next token is drawn."""
        return self._law(len(self.committed), self._masks(())[0])

    def laws(self, drafts: Sequence[int]) -> list[RowLaw]:
        """How the next token is drawn, and the one behind each of `drafts`, as if those before it were committed.

        Drafts of a constrained row must be `legal`. Where its grammar fails, nothing can be drawn: see `fault`.
        """
        masks = self._masks(drafts)
        laws = [self._law(len(self.committed), masks[0])]
        for count, draft in enumerate(drafts, 1):
            self._counts[draft] += 1
            laws.append(self._law(len(self.committed) + count, masks[count]))
        for draft in drafts:
            self._uncount(draft)
        return laws

    def _uncount(self, token: int) -> None:
        self._counts[token] -= 1
        if not self._counts[token]:
            del self._counts[token]

    def _masks(self, drafts: Sequence[int]) -> Sequence[Words | None]:
        if not self._constrained:
            return [None] * (1 + len(drafts))
        try:
            if not self.fault:
                return self._follow().masks(drafts)
        except ConstraintError as error:
            self.fault = str(error)
        return [NOTHING] * (1 + len(drafts))

    def _follow(self) -> Matcher:
        if self._matcher is None:
            raise ConstraintError("the grammar is not compiled")
        return self._matcher

    def _law(self, position: int, mask: Words | None) -> RowLaw:
        return RowLaw(
            self.request.sampling,
            position,
            self._adjustment(position),
            self.request.logprobs,
            mask=mask,
            spared=self._spared,
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
        """Append one token. Raises ValueError after the end, and ConstraintError if the row's grammar refuses it."""
        if self.finish is not None:
            raise ValueError(f"request {self.request.id} has ended")
        if self._matcher is not None:
            self._matcher.commit(token)
        position = len(self.committed)
        may_stop = position + 1 >= self.request.limits.min_tokens
        self.committed.append(token)
        self._counts[token] += 1
        # The end of a constrained answer is one at any length: it is legal where nothing else may be.
        ends = position >= self.request.limits.min_tokens or (self._constrained and token in self._eos)
        if token in self._ends and ends:
            return self._event(position, (token,), self._end("stop"))
        piece = self._text.push(self._vocabulary.bytes_of(token), may_stop=may_stop)
        text = piece.text
        if piece.stop is not None:
            self._finish("stop", stop_text=piece.stop)
        elif self._matcher is not None and self._matcher.over:
            text += self._end("stop")
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

"""One request inside a worker: its committed tokens and everything that follows from them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pomona.runtime.wire import replace
from pomona.workers.channels.guide import Guide, Route
from pomona.workers.channels.text import ChannelText
from pomona.workers.channels.walk import Segment
from pomona.workers.constraint.error import ConstraintError
from pomona.workers.constraint.tokens import Words
from pomona.workers.messages import Delta, Finish, FinishReason, PositionLogprobs, Request, TokenEvent, Usage
from pomona.workers.sampling.law import Adjustment, RowLaw
from pomona.workers.vocabulary import Vocabulary

FORBIDDEN = -1e30
"""Added to a logit that must not be drawn; finite, so that the row stays finite."""
NOTHING: Words = np.zeros(0, dtype=np.uint32)
"""The mask that allows no token: nothing can be drawn."""


class Row:
    """A pure function of the request and the tokens committed so far; `commit` is the only transition.

    The tokens that the request brought along are fed through the same transition, without events: at once, or, where
    the row `wants_guide`, when it has it.
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
        self.moved = False
        """What was drawn was replaced by other tokens: what the batch holds of the row does not lead to them."""
        self.wants_guide = bool(request.constraint or request.reasoning or request.tools)
        self._vocabulary = vocabulary
        self._constrained = request.constraint is not None or (request.tools is not None and request.tools.required)
        self._guide: Guide | None = None
        self._eos = eos
        ends = frozenset() if request.limits.ignore_eos and not self._constrained else eos
        self._ends = ends | frozenset(request.limits.stop_token_ids)
        # A grammar counts every byte, the first blank too.
        strips = vocabulary.strips_first_space and not self._constrained and request.reasoning is None
        self._text = ChannelText(request.limits.stop, strip_first_space=strips)
        self._counts: Counter[int] = Counter()
        self._spared = tuple(self._ends | vocabulary.newlines) if request.sampling.xtc_probability else ()
        self._prompt_tokens = frozenset(request.prompt) if request.sampling.repetition_penalty != 1.0 else frozenset()
        if not self.wants_guide:
            self._replay([None] * len(request.committed))

    @property
    def tokens(self) -> list[int]:
        """Prompt and committed tokens."""
        return [*self.request.prompt, *self.committed]

    @property
    def last_token(self) -> int:
        """The token that the next forward takes."""
        return self.committed[-1] if self.committed else self.request.prompt[-1]

    @property
    def is_new(self) -> bool:
        """Nothing was drawn for it here."""
        return len(self.committed) == len(self.request.committed)

    @property
    def remaining(self) -> int:
        return self.request.limits.max_tokens - len(self.committed)

    def usage(self) -> Usage:
        return Usage(
            len(self.request.prompt),
            max(len(self.committed), len(self.request.committed)),
            self.cached_tokens,
            reasoning_tokens=0 if self._guide is None else self._guide.thought_tokens,
            accepted_tokens=self.accepted,
            rejected_tokens=self.rejected,
        )

    def follow(self, guide: Guide | None, routes: Sequence[Route]) -> None:
        """Go on under a guide, which stands behind the tokens that the request brought along: these were `routes`.

        It may be over with them. None if there is no such thing.
        """
        self._guide = guide
        self._replay(routes if guide is not None else [None] * len(self.request.committed))

    def _replay(self, routes: Sequence[Route | None]) -> None:
        for token, route in zip(self.request.committed, routes, strict=True):
            if self.finish is None:
                self._append(token, route)
        if self._guide is not None and self._guide.over and self.finish is None:
            self._end("stop")

    def legal(self, drafts: Sequence[int]) -> int:
        """How many of `drafts`, from the first on, the row's constraint allows."""
        if self._guide is None and not self._constrained:
            return len(drafts)
        try:
            return self._follow().legal(drafts)
        except ConstraintError as error:
            self.fault = str(error)
            return 0

    def foresee(self) -> Guide | None:
        """A copy of what it follows, to look ahead with; None if it follows nothing, failed or has ended."""
        return None if self._guide is None or self.fault or self.finish is not None else self._guide.fork()

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
        if self._guide is None and not self._constrained:
            return [None] * (1 + len(drafts))
        try:
            if not self.fault:
                return self._follow().masks(drafts)
        except ConstraintError as error:
            self.fault = str(error)
        return [NOTHING] * (1 + len(drafts))

    def _follow(self) -> Guide:
        if self._guide is None:
            raise ConstraintError("the grammar is not compiled")
        return self._guide

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
        """Append one token, or what is written in its stead.

        Raises ValueError after the end, and ConstraintError if what the row follows refuses it.
        """
        if self.finish is not None:
            raise ValueError(f"request {self.request.id} has ended")
        if self._guide is None:
            return self._append(token, None, logprobs)
        if token in self._ends and token in self._eos and (plan := self._guide.detour(token)):
            self.moved = True
            return merged([self._append(each, self._guide.commit(each)) for each in plan])
        return self._append(token, self._guide.commit(token), logprobs)

    def _append(self, token: int, route: Route | None, logprobs: PositionLogprobs | None = None) -> TokenEvent:
        position = len(self.committed)
        may_stop = position + 1 >= self.request.limits.min_tokens
        self.committed.append(token)
        self._counts[token] += 1
        # The end of a constrained answer is one at any length: it is legal where nothing else may be.
        ends = position >= self.request.limits.min_tokens or (self._constrained and token in self._eos)
        if token in self._ends and ends and not (route is not None and route.is_mark):
            return self._event(position, (token,), self._end("stop"))
        segments = (Segment("content", self._vocabulary.bytes_of(token)),) if route is None else route.segments
        deltas, stop = self._text.push(segments, may_stop=may_stop)
        if stop is not None:
            self._finish("stop", stop_text=stop)
        elif self._guide is not None and self._guide.over and route is not None and not self._replays:
            deltas += self._end("stop")
        elif len(self.committed) >= self.request.limits.max_tokens:
            deltas += self._end("length")
        listed = () if logprobs is None or (route is not None and not route.is_answer) else (logprobs,)
        return self._event(position, (token,), deltas, listed)

    @property
    def _replays(self) -> bool:
        """The guide is ahead of the row."""
        return len(self.committed) < len(self.request.committed)

    def end(self, reason: FinishReason, message: str = "") -> TokenEvent:
        """End it without a token; text that was withheld is delivered."""
        return self._event(len(self.committed), (), self._end(reason, message))

    def replayed(self) -> TokenEvent:
        """The end that the committed tokens had already reached, told again."""
        return self._event(len(self.committed), (), ())

    def _end(self, reason: FinishReason, message: str = "") -> tuple[Delta, ...]:
        """What was withheld; it may turn out to hold a stop string, which then is the reason."""
        deltas, stop = self._text.flush(None if self._guide is None else self._guide.flush())
        if stop is not None and reason in ("stop", "length"):
            self._finish("stop", stop_text=stop)
        else:
            self._finish(reason, message=message)
        return deltas

    def _finish(self, reason: FinishReason, *, stop_text: str | None = None, message: str = "") -> None:
        self.finish = Finish(reason=reason, usage=self.usage(), stop_text=stop_text, message=message)

    def _event(
        self,
        position: int,
        tokens: tuple[int, ...],
        deltas: tuple[Delta, ...],
        logprobs: Sequence[PositionLogprobs] = (),
    ) -> TokenEvent:
        return TokenEvent(
            id=self.request.id,
            position=position,
            tokens=tokens,
            deltas=deltas,
            logprobs=tuple(logprobs),
            finish=self.finish,
        )


def merged(events: Sequence[TokenEvent]) -> TokenEvent:
    """One event of several that follow each other."""
    if len(events) == 1:
        return events[0]
    return replace(
        events[0],
        tokens=tuple(token for event in events for token in event.tokens),
        deltas=tuple(delta for event in events for delta in event.deltas),
        logprobs=tuple(entry for event in events for entry in event.logprobs),
        finish=events[-1].finish,
    )

"""Where one answer stands in its grammar: which tokens may come next, and whether it is complete."""

from collections.abc import Sequence
from copy import copy

import numpy as np
from llguidance import LLMatcher

from pomona.workers.constraint.error import ConstraintError
from pomona.workers.constraint.grammar import limits
from pomona.workers.constraint.tokens import Tokens, Words


class Matcher:
    """The state of one row, moved by `commit` alone; not for two threads at once.

    llguidance does not raise: a matcher that failed goes on as one that only wants to end. So it is asked after every
    call, and each failure is a `ConstraintError`.
    """

    def __init__(self, tokens: Tokens, grammar: str) -> None:
        """Compiles, which may take long. Raises ConstraintError for a grammar that is none or is too large."""
        self._tokens = tokens
        self._state = LLMatcher(tokens.lexicon, grammar, log_level=0, limits=limits())
        self._mask: Words | None = None
        self.over = False
        """The answer is complete, and nothing can follow."""
        self._look()

    def masks(self, drafts: Sequence[int] = ()) -> list[Words]:
        """What may come next, and behind each of `drafts`, as `legal` gives them; nobody may write to them.

        An end-of-sequence token is allowed exactly where the answer is complete. Raises ConstraintError where nothing
        can follow, and for a draft that is not allowed.
        """
        if self._mask is None:
            self._mask = self._mask_of(self._state)
        masks = [self._mask]
        if drafts:
            ahead = self._state.deep_copy()
            for draft in drafts:
                self._consume(ahead, draft)
                masks.append(self._mask_of(ahead))
        return masks

    def legal(self, drafts: Sequence[int]) -> int:
        """How many of `drafts`, from the first on, the grammar allows; an end-of-sequence token is none of them."""
        texts = [draft < self._tokens.size and draft not in self._tokens.eos for draft in drafts]
        first = list(drafts[: [*texts, False].index(False)])
        if not first or self.over:
            return 0
        ahead = self._state.deep_copy()
        count = ahead.try_consume_tokens(first)
        _check(ahead)
        return count

    def forced(self, limit: int) -> tuple[int, ...]:
        """Tokens that come next whatever is drawn, at most `limit`: the masks leave one at each of their places.

        They are the tokeniser's own of all bytes that are forced, and end before the last byte where a token may hold
        that byte and more. The masks may leave another token only where the bytes spell a special token's name, which
        the tokeniser does not take for text. An end-of-sequence token is none of them. Raises ConstraintError if the
        grammar failed.
        """
        if self.complete:
            return ()
        found = self._state.compute_ff_tokens()
        _check(self._state)
        return tuple(found[:limit])

    @property
    def complete(self) -> bool:
        """The answer may end here."""
        return self.over or bool(self._state.is_accepting())

    def fork(self) -> "Matcher":
        """One that stands at the same place and goes its own way. They share a budget of states."""
        other = copy(self)
        other._state = self._state.deep_copy()
        return other

    def feed(self, data: bytes) -> None:
        """Go on behind bytes that came as a part of a token. Raises ConstraintError if they are not allowed."""
        tokens = self._tokens.encode(data)
        if b"".join(self._tokens.pieces[token] for token in tokens) != data:
            raise ConstraintError("no tokens of the model write these bytes")
        for token in tokens:
            self.commit(token)

    def commit(self, token: int) -> None:
        """Go on behind `token`. Raises ConstraintError if it is not allowed, and then stays where it is."""
        if token in self._tokens.eos:
            if not self._state.is_accepting():
                raise ConstraintError(f"token {token} ends the answer where it is not complete")
            self.over = True
            return
        if self.over:
            raise ConstraintError(f"token {token} follows an answer that is complete")
        self._consume(self._state, token)
        self._mask = None
        self._look()

    def _look(self) -> None:
        _check(self._state)
        self.over = self._state.is_stopped()
        if self.over and not self._state.is_accepting():
            raise ConstraintError(f"the grammar leads nowhere: {self._state.stop_reason()}")

    def _consume(self, state: LLMatcher, token: int) -> None:
        if not 0 <= token < self._tokens.size:
            raise ConstraintError(f"token {token} is not in the vocabulary")
        accepted = state.try_consume_tokens([token])
        _check(state)
        if accepted != 1:
            raise ConstraintError(f"token {token} is not allowed here")

    def _mask_of(self, state: LLMatcher) -> Words:
        words = np.zeros(len(self._tokens.texts), dtype=np.uint32)
        state.unsafe_compute_mask_ptr(words.__array_interface__["data"][0], words.nbytes)
        _check(state)
        words &= self._tokens.texts
        if state.is_accepting():
            words |= self._tokens.ends
        _check(state)
        if not words.max():
            raise ConstraintError("no token of the model can follow")
        return words


def _check(state: LLMatcher) -> None:
    if state.is_error():
        raise ConstraintError(state.get_error())

"""Where the end of a sequence stood earlier in it: an index of token pairs, each with a chain of its occurrences."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

SHORTEST = 2
"""Tokens of the shortest match there is."""
LONGEST = 32
"""Length from which on a match is not compared any further back; it is still followed, and counted on."""
LOOKED_AT = 64
"""Earlier occurrences of the last pair that are compared, the latest first; it bounds a search in dull text."""


class Match(NamedTuple):
    """The last `length` tokens stood before, ending at index `end`."""

    end: int
    length: int


class SuffixIndex:
    """Tokens of one sequence that grows at its end, about 170 bytes each; appending one is a few dictionary accesses.

    What the match of a shorter sequence is followed by is, where it agrees with the token that came, the match of the
    longer one, and no other can be longer by more. So a search is made only after a match has broken.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._latest: dict[int, int] = {}
        """Pair of tokens as one number: the index of its second token, where it stood last."""
        self._earlier = array("q")
        """For each index, where the pair that ends there stood before; -1: nowhere."""
        self._match: Match | None = None
        self._matched = 0
        """Tokens that `_match` is the match of."""

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        known, latest, earlier = self._tokens, self._latest, self._earlier
        before = known[-1] if known else None
        for index, token in enumerate(tokens, len(known)):
            if before is None:
                earlier.append(-1)
            else:
                pair = before << 32 | token
                earlier.append(latest.get(pair, -1))
                latest[pair] = index
            before = token
        known.extend(tokens)

    def match(self) -> Match | None:
        """The longest match of the end, the latest of equally long ones; None if not even the last pair has one."""
        if self._matched != len(self._tokens):
            self._match = self._followed() or self._search()
            self._matched = len(self._tokens)
        return self._match

    def _followed(self) -> Match | None:
        """The last match, if all tokens since went on as it did."""
        match = self._match
        if match is None:
            return None
        more = len(self._tokens) - self._matched
        start = match.end + 1
        if self._tokens[start : start + more] != self._tokens[self._matched :]:
            return None
        return Match(match.end + more, match.length + more)

    def _search(self) -> Match | None:
        tokens, earlier, last = self._tokens, self._earlier, len(self._tokens) - 1
        best = None
        length = SHORTEST - 1
        candidate = earlier[last] if tokens else -1
        for _ in range(LOOKED_AT):
            if candidate < length or length >= LONGEST:  # it is not longer, whatever it holds, nor are those before it
                break
            if tokens[candidate - length] == tokens[last - length]:
                longest = min(LONGEST, candidate + 1)
                own = next(
                    (back for back in range(SHORTEST, longest) if tokens[candidate - back] != tokens[last - back]),
                    longest,
                )
                if own > length:
                    best, length = Match(candidate, own), own
            candidate = earlier[candidate]
        return best

    def continuation(self, match: Match, count: int) -> tuple[int, ...]:
        """The `count` tokens that came behind a match; where they reach the end, they run on into themselves."""
        behind = self._tokens[match.end + 1 : match.end + 1 + count]
        while len(behind) < count:
            behind += behind[: count - len(behind)]
        return tuple(behind)

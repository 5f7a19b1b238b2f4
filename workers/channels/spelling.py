"""A model's tokens by their bytes: which spell a text, which begin with one, which hold one."""

from bisect import bisect_left
from functools import cached_property

from pomona.workers.channels.walk import WHITE
from pomona.workers.constraint.tokens import Tokens


class Spelling:
    """Special tokens count by their names. Built when first asked, as sorting a large vocabulary takes a while."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._holding: dict[bytes, tuple[int, ...]] = {}

    def prepare(self) -> None:
        """Build all of it now, so that no row waits for it."""
        assert self._by_bytes, "a vocabulary has tokens"

    def bytes_of(self, token: int) -> bytes:
        """Empty for an id that stands for nothing."""
        return self._tokens.pieces[token] if 0 <= token < self._tokens.size else b""

    def is_special(self, token: int) -> bool:
        return token in self._tokens.special

    @cached_property
    def _sorted(self) -> list[tuple[bytes, int]]:
        return sorted((piece, token) for token in range(self._tokens.size) if (piece := self.bytes_of(token)))

    @cached_property
    def _by_bytes(self) -> dict[bytes, list[int]]:
        found: dict[bytes, list[int]] = {}
        for piece, token in self._sorted:
            found.setdefault(piece, []).append(token)
        return found

    @cached_property
    def blank(self) -> tuple[tuple[int, int], ...]:
        """Tokens of nothing but white space, each with its length."""
        return tuple((token, len(piece)) for piece, token in self._sorted if not piece.strip(WHITE))

    @cached_property
    def _longest_added(self) -> int:
        return max((len(self.bytes_of(token)) for token in self._tokens.added), default=0)

    def within(self, text: bytes) -> list[int]:
        """Tokens that `text` begins with, itself among them."""
        return [token for end in range(1, len(text) + 1) for token in self._by_bytes.get(text[:end], ())]

    def beyond(self, text: bytes) -> list[int]:
        """Tokens that begin with `text` and go on."""
        first = bisect_left(self._sorted, (text, self._tokens.size))
        found = []
        for piece, token in self._sorted[first:]:
            if not piece.startswith(text):
                break
            found.append(token)
        return found

    def holding(self, text: bytes) -> tuple[int, ...]:
        """Tokens that hold `text` anywhere and are more than it."""
        if text not in self._holding:
            self._holding[text] = tuple(
                token for piece, token in self._sorted if len(piece) > len(text) and text in piece
            )
        return self._holding[text]

    def spell(self, text: bytes) -> list[int]:
        """The tokens that write a text: one that stands for its name where it occurs, else the tokeniser's own.

        Empty if it cannot be written.
        """
        tokens: list[int] = []
        plain = 0
        place = 0
        while place < len(text):
            added = self._added_at(text, place)
            if added is None:
                place += 1
                continue
            tokens += [*self._tokens.encode(text[plain:place]), added]
            place = plain = place + len(self.bytes_of(added))
        tokens += self._tokens.encode(text[plain:])
        return tokens if b"".join(map(self.bytes_of, tokens)) == text else []

    def _added_at(self, text: bytes, place: int) -> int | None:
        for end in range(min(len(text), place + self._longest_added), place, -1):
            for token in self._by_bytes.get(text[place:end], ()):
                if token in self._tokens.added:
                    return token
        return None

"""A row's text: bytes in, whole UTF-8 out, cut at the first stop string."""

import codecs
from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """Text that may be delivered, and the stop string that ended it."""

    text: str
    stop: str | None = None


class TextStream:
    """Turns tokens' bytes into deltas; a pure function of the bytes pushed so far.

    Text that may still become part of a stop string, and bytes of an unfinished character, are withheld. Concatenated,
    the pieces are what a decoder would make of all bytes at once, up to the stop string.
    """

    def __init__(self, stops: Sequence[str] = (), *, strip_first_space: bool = False) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self._strip = strip_first_space

    def push(self, data: bytes, *, may_stop: bool = True) -> Piece:
        """Add one token's bytes; with `may_stop` false the text cannot end here, whatever it holds."""
        return self._take(self._decoder.decode(data), may_stop)

    def flush(self) -> Piece:
        """The end: what was withheld, an unfinished character as U+FFFD."""
        piece = self._take(self._decoder.decode(b"", final=True), True)
        if piece.stop is None:
            piece = Piece(piece.text + self._held)
            self._held = ""
        return piece

    def _take(self, text: str, may_stop: bool) -> Piece:
        if self._strip and text:
            text, self._strip = text.removeprefix(" "), False
        text = self._held + text
        self._held = ""
        if not self._stops or not may_stop:
            return Piece(text)
        hits = [(index, -len(stop), stop) for stop in self._stops if (index := text.find(stop)) >= 0]
        if hits:
            index, _, stop = min(hits)
            return Piece(text[:index], stop)
        keep = self._open_suffix(text)
        self._held = text[len(text) - keep :]
        return Piece(text[: len(text) - keep])

    def _open_suffix(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0

"""A row's channels as text: the bytes of each become whole UTF-8; only the answer itself can hold a stop string."""

from collections.abc import Sequence

from pomona.workers.channels.walk import Segment
from pomona.workers.messages import Delta
from pomona.workers.text import TextStream

Told = tuple[tuple[Delta, ...], str | None]
"""Deltas, and the stop string that ended the answer."""


class ChannelText:
    """Turns segments into deltas; a pure function of the segments pushed so far."""

    def __init__(self, stops: Sequence[str], *, strip_first_space: bool) -> None:
        self._content = TextStream(stops, strip_first_space=strip_first_space)
        self._aside = TextStream()
        self._of: Segment | None = None
        """Whose text `_aside` is in the midst of; without bytes."""

    def push(self, segments: Sequence[Segment], *, may_stop: bool) -> Told:
        """Add what one token was; with `may_stop` false the text cannot end here, whatever it holds."""
        deltas: list[Delta] = []
        for segment in segments:
            of = segment._replace(text=b"")
            if self._of is not None and self._of != of:
                deltas += _deltas(self._of, self._aside.flush().text)
                self._of = None
            if segment.channel == "content":
                piece = self._content.push(segment.text, may_stop=may_stop)
                deltas += _deltas(segment, piece.text)
                if piece.stop is not None:
                    return tuple(deltas), piece.stop
                continue
            self._of = of
            deltas += _deltas(of, self._aside.push(segment.text).text)
        return tuple(deltas), None

    def flush(self, last: Segment | None) -> Told:
        """The end: `last` comes behind all that was pushed, and what was withheld behind it."""
        deltas, stop = ((), None) if last is None else self.push([last], may_stop=True)
        if stop is None:
            if self._of is not None:
                deltas += tuple(_deltas(self._of, self._aside.flush().text))
            piece = self._content.flush()
            deltas += tuple(_deltas(_CONTENT, piece.text))
            stop = piece.stop
        return deltas, stop


_CONTENT = Segment("content", b"")


def _deltas(of: Segment, text: str) -> list[Delta]:
    return [Delta(of.channel, text, of.call, of.tool)] if text else []

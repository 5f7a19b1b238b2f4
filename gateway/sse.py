"""Server-sent events: the bytes, and the interface that each API's answer writer fills."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from pomona.gateway.body import JsonObject, encode_json
from pomona.gateway.errors import ApiError
from pomona.workers.messages import TokenEvent

COMMENT = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""No proxy may hold back what was written."""

BREAKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
"""Line breaks of Unicode that are none of the protocol; clients that split text into lines would cut events there."""


class Sse(NamedTuple):
    data: JsonObject
    name: str | None = None
    """The `event:` line; OpenAI's older routes have none."""


def encode_sse(event: Sse) -> bytes:
    name = b"" if event.name is None else b"event: " + event.name.encode() + b"\n"
    data = encode_json(event.data)
    for raw, escaped in BREAKS:
        data = data.replace(raw, escaped)
    return name + b"data: " + data + b"\n\n"


class AnswerWriter(Protocol):
    """One answer in one API's shape, fed with the events of its token streams.

    A stream sends what `begin`, `feed` and `end` return; the answer in one piece is `body()` after the very same calls.
    So the joined deltas are the text of the whole.
    """

    keepalive: bytes
    """What a silent stream sends."""
    last: bytes
    """What ends a stream, after all events."""

    def begin(self) -> Iterable[Sse]: ...

    def feed(self, index: int, event: TokenEvent) -> Iterable[Sse]:
        """An event of the token stream with this index."""

    def end(self) -> Iterable[Sse]:
        """All token streams have finished."""

    def fail(self, error: ApiError) -> Iterable[Sse]:
        """The answer breaks off after its head was sent."""

    def body(self) -> JsonObject: ...

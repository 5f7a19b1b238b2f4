"""The codec: frozen typed messages as MessagePack, one tagged union per direction.

Messages are `Message` structs. A receiver names the union it accepts and gets typed values back; an unknown tag or a
wrong field type is a `WireError`. New fields go last with a default, so that both ends may differ by one version.
"""

from typing import Any, Generic, TypeVar

import msgspec

PROTOCOL = 1
"""Raised whenever a message changes in a way that an older peer would misread; HELLO carries it."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A value that crosses a process boundary."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value inside a message that never travels alone, so it carries no tag."""


class WireError(ValueError):
    """The bytes are not a message that this receiver accepts."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


M = TypeVar("M")


class Decoder(Generic[M]):
    """Decodes one union of message types; `Decoder[SchedulerInbound](SchedulerInbound)`."""

    def __init__(self, union: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(union)

    def decode(self, frame: bytes) -> M:
        try:
            message: M = self._decoder.decode(frame)
        except msgspec.DecodeError as error:
            raise WireError(str(error)) from error
        return message

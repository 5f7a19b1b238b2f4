"""The codec: frozen typed messages as MessagePack, one tagged union per direction.

Messages are `Message` structs. A receiver names the union it accepts and gets typed values back; an unknown tag or a
wrong field type is a `WireError`. New fields go last with a default, so that both ends may differ by one version.
"""

from typing import TYPE_CHECKING, Any, Generic, TypeVar, dataclass_transform

import msgspec

PROTOCOL = 1
"""Raised whenever a message changes in a way that an older peer would misread; HELLO carries it."""


if TYPE_CHECKING:
    # Type checkers ask every subclass of a frozen struct to say `frozen=True` again; this says it once for all.
    @dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
    class _Frozen:
        def __init_subclass__(cls, *, kw_only: bool = False) -> None: ...

    class Message(_Frozen): ...

    class Part(_Frozen): ...

    class Section(_Frozen): ...

else:

    class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
        """A value that crosses a process boundary."""

    class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
        """A value inside a message that never travels alone, so it carries no tag."""

    class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """A part of the configuration: named fields, and an error for every name that it does not know."""


class WireError(ValueError):
    """The bytes are not a message that this receiver accepts."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


F = TypeVar("F")


def replace(value: F, **changes: Any) -> F:
    """A copy of a message, part or section with some fields changed; raises TypeError for an unknown field."""
    copy: F = msgspec.structs.replace(value, **changes)  # type: ignore[type-var]  # a struct at run time
    return copy


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

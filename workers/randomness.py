"""Random numbers keyed by what they are for, never by the order in which they are asked for."""

import hashlib
import struct
from enum import IntEnum


class Purpose(IntEnum):
    """What a number decides; two purposes at one position are independent."""

    SAMPLE = 0
    """The token of a plain draw."""
    DRAFT = 1
    """A guess at the token, from a distribution of its own."""
    COIN = 2
    """Whether such a guess is kept."""
    RESIDUAL = 3
    """The token instead of one that is not."""
    XTC = 4
    """Whether the most probable tokens are left out."""


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """A number in [0, 1) that only its arguments decide; 53 bits of BLAKE2b.

    `position` is the index of the output token that the number is drawn for.
    """
    digest = hashlib.blake2b(struct.pack("<QQI", seed, position, purpose), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53

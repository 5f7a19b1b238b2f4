"""A stored block as index and disk know it: three facts, all of them in the name of its file."""

import re
from typing import NamedTuple

from pomona.cache.messages import BlockKey

_NAME = re.compile(r"([0-9a-f]{64})-([0-9a-f]{64})-([1-9][0-9]{0,14})\.safetensors")


class Block(NamedTuple):
    key: BlockKey
    parent: BlockKey
    """The key of the block before it, or the root."""
    size: int
    """Bytes of the whole file."""

    @property
    def file_name(self) -> str:
        return f"{self.key.hex()}-{self.parent.hex()}-{self.size}.safetensors"

    @classmethod
    def parse(cls, file_name: str) -> "Block | None":
        """The block that a file is named for, or None if no block has that name."""
        match = _NAME.fullmatch(file_name)
        if match is None or match[1] == match[2]:
            return None
        return cls(BlockKey(bytes.fromhex(match[1])), BlockKey(bytes.fromhex(match[2])), int(match[3]))

"""The file of one block: safetensors with a header that is checked whole before its payload is believed.

Plain bytes, no MLX: the writer's thread lives here. The payload is, for each layer, keys [1, heads, tokens, key_dim]
and then values [1, heads, tokens, value_dim], row-major and little-endian.
"""

import json
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from pomona.cache.keys import FORMAT_VERSION
from pomona.cache.layout import ITEM_BYTES, KVDtype, KVLayout
from pomona.cache.messages import BlockKey

MAX_HEADER_BYTES = 4 * 1024**2

DTYPE_NAMES: dict[KVDtype, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

Buffer = bytes | bytearray | memoryview


class BlockError(Exception):
    """A file is not the block that it should be; the text says in what."""


class Slot(NamedTuple):
    """One array of a payload."""

    name: str
    shape: tuple[int, int, int, int]
    start: int
    end: int


class BlockFormat(NamedTuple):
    """What all block files of one model have in common."""

    layout: KVLayout
    tokens: int

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Keys and values of each layer, in the order of the payload."""
        slots: list[Slot] = []
        start = 0
        for number, layer in enumerate(self.layout.layers):
            for part, dim in (("keys", layer.key_dim), ("values", layer.value_dim)):
                end = start + ITEM_BYTES[self.layout.dtype] * layer.heads * self.tokens * dim
                slots.append(Slot(f"layers.{number}.{part}", (1, layer.heads, self.tokens, dim), start, end))
                start = end
        return tuple(slots)

    @property
    def payload_bytes(self) -> int:
        return self.tokens * self.layout.token_bytes

    def header(self, key: BlockKey, parent: BlockKey, payload: Buffer) -> bytes:
        """The bytes in front of the payload, a multiple of 8 of them."""
        facts = self._facts(key, parent) | {"crc32": f"{zlib.crc32(payload):08x}"}
        text = json.dumps({"__metadata__": facts, **self._table()}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text

    def _facts(self, key: BlockKey, parent: BlockKey) -> dict[str, str]:
        return {
            "format": f"pomona-kv-{FORMAT_VERSION}",
            "key": key.hex(),
            "parent": parent.hex(),
            "tokens": str(self.tokens),
        }

    def _table(self) -> dict[str, object]:
        dtype = DTYPE_NAMES[self.layout.dtype]
        return {
            slot.name: {"dtype": dtype, "shape": list(slot.shape), "data_offsets": [slot.start, slot.end]}
            for slot in self.slots
        }

    def read(self, path: Path, key: BlockKey, parent: BlockKey) -> memoryview:
        """The payload of the block `key` behind `parent`.

        Raises BlockError if the file is not this block in this format, whole and unchanged, or cannot be read.
        """
        try:
            # Read, not mapped: a mapped file that is cut short while it is read ends the process.
            data = memoryview(path.read_bytes())
        except OSError as error:
            raise BlockError(f"cannot be read: {error.strerror or error}") from error
        length = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else 0
        if length > MAX_HEADER_BYTES or len(data) != 8 + length + self.payload_bytes:
            raise BlockError(f"{len(data)} bytes, with a header of {length} and a payload of {self.payload_bytes}")
        try:
            header = json.loads(bytes(data[8 : 8 + length]))
            facts = header.pop("__metadata__")
            checksum = facts.pop("crc32")
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise BlockError(f"the header cannot be read: {error}") from error
        for name, value in self._facts(key, parent).items():
            if facts.get(name) != value:
                raise BlockError(f"{name} is {facts.get(name)!r}, not {value!r}")
        if header != self._table():
            raise BlockError("shapes, dtypes or layers are not those of the model")
        payload = data[8 + length :]
        if checksum != f"{zlib.crc32(payload):08x}":
            raise BlockError("the checksum does not match the payload")
        return payload


def write(path: Path, header: Buffer, payload: Buffer) -> None:
    """Make a new file, mode 0600. Raises OSError; what was written of it then is left to be swept.

    There is no fsync: after a power loss a file may be short or stale, which `read` finds out.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(header)
        file.write(payload)

"""The file of one block: safetensors with a header that is checked whole before its payload is believed.

Plain bytes, no MLX: the writer's thread lives here. The payload is, for each layer of slices, its arrays with the
entries of the block's tokens, and behind them, for each layer of state, its arrays as they are at the block's end;
row-major and little-endian. Both parts have a checksum of their own: a prefix of many blocks needs the slices of all of
them and the state of the last alone.
"""

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

from pomona.cache.keys import FORMAT_VERSION
from pomona.cache.layout import Dtype, KVLayout
from pomona.cache.messages import BlockKey

MAX_HEADER_BYTES = 4 * 1024**2

DTYPE_NAMES: dict[Dtype, str] = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
}

Buffer = bytes | bytearray | memoryview

BlockPart = Literal["slices", "state"]


class BlockError(Exception):
    """A file is not the block that it should be; the text says in what."""


class Slot(NamedTuple):
    """One array of a payload."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    start: int
    end: int


class BlockFormat(NamedTuple):
    """What all block files of one model have in common. `end` is the number of tokens up to a block's last."""

    layout: KVLayout
    tokens: int

    def slots(self, end: int) -> tuple[Slot, ...]:
        """The arrays in the order of the payload: all slices, then all state."""
        slots: list[Slot] = []
        start = 0
        for number, layer in sorted(enumerate(self.layout.layers), key=lambda each: each[1].is_state):
            length = layer.state_tokens(end) if layer.is_state else self.tokens
            for array in layer.arrays:
                shape, size = array.shape, array.nbytes
                if layer.kind != "arrays":
                    shape, size = (*shape[:2], length, *shape[3:]), size * length
                slots.append(Slot(f"layers.{number}.{array.name}", array.dtype, shape, start, start + size))
                start += size
        return tuple(slots)

    @property
    def slice_bytes(self) -> int:
        """Bytes of the first part of every payload."""
        return self.tokens * self.layout.token_bytes

    def payload_bytes(self, end: int) -> int:
        return self.slice_bytes + self.layout.state_bytes(end)

    def header(self, key: BlockKey, parent: BlockKey, payload: Buffer, end: int) -> bytes:
        """The bytes in front of the payload, a multiple of 8 of them."""
        parts = memoryview(payload)
        sums = {
            "crc32": f"{zlib.crc32(parts[: self.slice_bytes]):08x}",
            "crc32_state": f"{zlib.crc32(parts[self.slice_bytes :]):08x}",
        }
        facts = self._facts(key, parent, end) | sums
        text = json.dumps({"__metadata__": facts, **self._table(end)}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text

    def _facts(self, key: BlockKey, parent: BlockKey, end: int) -> dict[str, str]:
        return {
            "format": f"pomona-kv-{FORMAT_VERSION}",
            "key": key.hex(),
            "parent": parent.hex(),
            "tokens": str(self.tokens),
            "end": str(end),
        }

    def _table(self, end: int) -> dict[str, object]:
        return {
            slot.name: {
                "dtype": DTYPE_NAMES[slot.dtype],
                "shape": list(slot.shape),
                "data_offsets": [slot.start, slot.end],
            }
            for slot in self.slots(end)
        }

    def read(self, path: Path, key: BlockKey, parent: BlockKey, end: int, part: BlockPart = "slices") -> memoryview:
        """One part of the payload of the block `key` behind `parent`.

        Raises BlockError if the file is not this block in this format, its header and this part whole and unchanged,
        or cannot be read.
        """
        payload_bytes = self.payload_bytes(end)
        try:
            # Read, not mapped: a mapped file that is cut short while it is read ends the process.
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                length = struct.unpack("<Q", start)[0] if len(start := file.read(8)) == 8 else 0
                if length > MAX_HEADER_BYTES or size != 8 + length + payload_bytes:
                    raise BlockError(f"{size} bytes, with a header of {length} and a payload of {payload_bytes}")
                text = file.read(length)
                if part == "state":
                    file.seek(self.slice_bytes, os.SEEK_CUR)
                payload = memoryview(file.read(self.slice_bytes if part == "slices" else -1))
        except OSError as error:
            raise BlockError(f"cannot be read: {error.strerror or error}") from error
        try:
            header = json.loads(text)
            facts = header.pop("__metadata__")
            sums = {"slices": facts.pop("crc32"), "state": facts.pop("crc32_state")}
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise BlockError(f"the header cannot be read: {error}") from error
        for name, value in self._facts(key, parent, end).items():
            if facts.get(name) != value:
                raise BlockError(f"{name} is {facts.get(name)!r}, not {value!r}")
        if header != self._table(end):
            raise BlockError("shapes, dtypes or layers are not those of the model")
        if sums[part] != f"{zlib.crc32(payload):08x}":
            raise BlockError(f"the checksum does not match the {part}")
        return payload


def write(path: Path, header: Buffer, payload: Buffer) -> None:
    """Make a new file, mode 0600. Raises OSError; what was written of it then is left to be swept.

    There is no fsync: after a power loss a file may be short or stale, which `read` finds out.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(header)
        file.write(payload)

"""What a block file says of itself, read without its model: enough to list it, and to find out whether it is whole."""

import json
import struct
import zlib
from itertools import pairwise
from math import prod
from typing import IO, NamedTuple

from pomona.cache.block import Block
from pomona.cache.keys import FORMAT_VERSION

MAX_HEADER_BYTES = 4 * 1024**2
CHUNK_BYTES = 1024**2

ITEM_BYTES = {
    "F64": 8,
    "I64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
}


class DamagedBlock(Exception):
    """A file is not the block that its name says; the text tells in what."""


class Header(NamedTuple):
    tokens: int
    """Of the block."""
    end: int
    """Tokens of the chain up to the last of the block; 0 where the file does not say."""
    dtypes: tuple[str, ...]
    edges: tuple[int, ...]
    """Where in the payload an array begins or ends, from 0 to the end of the payload."""
    start: int
    """Of the payload in the file."""
    checksums: tuple[str, str]
    """CRC-32 of the first arrays of the payload and of the rest, as the header gives them."""


def read_header(file: IO[bytes], block: Block) -> Header:
    """The header of a file that is open at its start.

    Raises DamagedBlock if it is not the header of this block in the present format, or OSError.
    """
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 0 < length <= min(MAX_HEADER_BYTES, block.size - 8):
        raise DamagedBlock("the file has no header")
    try:
        table = json.loads(file.read(length))
        facts = table.pop("__metadata__")
        found = {name: facts.get(name) for name in ("format", "key", "parent")}
        checksums = (str(facts["crc32"]), str(facts.get("crc32_state", "00000000")))
        tokens, end = int(facts["tokens"]), int(facts.get("end", 0))
        edges = _edges(table)
        dtypes = tuple(sorted({str(array["dtype"]) for array in table.values()}))
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise DamagedBlock(f"the header cannot be read: {error}") from error
    wanted = {"format": f"pomona-kv-{FORMAT_VERSION}", "key": block.key.hex(), "parent": block.parent.hex()}
    for name, value in wanted.items():
        if found[name] != value:
            raise DamagedBlock(f"{name} is {found[name]!r}, not {value!r}")
    if 8 + length + edges[-1] != block.size:
        raise DamagedBlock(f"a header of {length} and arrays of {edges[-1]} bytes do not make {block.size}")
    return Header(tokens, end, dtypes, edges, 8 + length, checksums)


def _edges(table: dict[str, dict[str, object]]) -> tuple[int, ...]:
    """Raises ValueError, KeyError or TypeError where the arrays do not lie one behind the other."""
    spans: list[tuple[int, int]] = []
    for name, array in table.items():
        shape, offsets = array["shape"], array["data_offsets"]
        if not isinstance(shape, list) or not isinstance(offsets, list):
            raise TypeError(f"{name} has no shape or no place")
        begin, end = map(int, offsets)
        if end - begin != prod(map(int, shape)) * ITEM_BYTES[str(array["dtype"])]:
            raise ValueError(f"{name} does not fill its place")
        spans.append((begin, end))
    edges = (0, *(end for _, end in sorted(spans)))
    if [begin for begin, _ in sorted(spans)] != list(edges[:-1]):
        raise ValueError("arrays overlap or leave gaps")
    return edges


def check(file: IO[bytes], block: Block) -> Header:
    """Read a whole file that is open at its start.

    Raises DamagedBlock if a bit of it is not as it was written, or OSError.
    """
    header = read_header(file, block)
    first, second = header.checksums
    # The header does not say where the first checksum ends, only that it is where an array does.
    before: str | None = None
    crc = 0
    if f"{crc:08x}" == first:
        before = first
    for begin, end in pairwise(header.edges):
        crc = _crc(file, end - begin, crc)
        if before is None and f"{crc:08x}" == first:
            before, crc = first, 0
    if before is None or f"{crc:08x}" != second:
        raise DamagedBlock("the checksum does not match the payload")
    if file.read(1):
        raise DamagedBlock(f"the file goes on behind its {block.size} bytes")
    return header


def _crc(file: IO[bytes], size: int, crc: int) -> int:
    while size:
        data = file.read(min(size, CHUNK_BYTES))
        if not data:
            raise DamagedBlock("the file is cut short")
        crc = zlib.crc32(data, crc)
        size -= len(data)
    return crc

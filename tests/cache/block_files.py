"""Block files made by hand, so that what reads them is not tested against what writes them."""

import json
import random
import struct
import zlib
from pathlib import Path

from pomona.cache.block import Block
from pomona.cache.disk import BlockFolder
from pomona.cache.keys import FORMAT_VERSION
from pomona.cache.messages import BlockKey

TOKENS = 16
ROOT = BlockKey(b"\xee" * 32)


def key(number: int) -> BlockKey:
    return BlockKey(bytes([number]) * 32)


def block_bytes(own: BlockKey, parent: BlockKey, /, end: int = TOKENS, state: int = 0, **facts: str) -> bytes:
    """The file of a block of two arrays, and of `state` bytes of a third under the second checksum."""
    rng = random.Random(own)
    slices, rest = rng.randbytes(2 * TOKENS * 4), rng.randbytes(state)
    table: dict[str, object] = {
        "layers.0.keys": {"dtype": "F32", "shape": [1, 1, TOKENS, 1], "data_offsets": [0, 64]},
        "layers.0.values": {"dtype": "F32", "shape": [1, 1, TOKENS, 1], "data_offsets": [64, 128]},
    }
    known = {
        "format": f"pomona-kv-{FORMAT_VERSION}",
        "key": own.hex(),
        "parent": parent.hex(),
        "tokens": str(TOKENS),
        "end": str(end),
        "crc32": f"{zlib.crc32(slices):08x}",
    }
    if state:
        table["layers.1.state"] = {"dtype": "U8", "shape": [state], "data_offsets": [128, 128 + state]}
        known["crc32_state"] = f"{zlib.crc32(rest):08x}"
    text = json.dumps({"__metadata__": known | facts, **table}).encode()
    return struct.pack("<Q", len(text)) + text + slices + rest


def block_of(own: BlockKey, parent: BlockKey, data: bytes) -> Block:
    return Block(own, parent, len(data))


def put(folder: BlockFolder, own: BlockKey, parent: BlockKey, data: bytes | None = None) -> Path:
    """Store a block in an open folder."""
    data = block_bytes(own, parent) if data is None else data
    block = block_of(own, parent, data)
    temporary = folder.temporary(block, "1")
    temporary.write_bytes(data)
    folder.publish(temporary, block)
    return folder.path(block)


def put_chain(folder: BlockFolder, *numbers: int, root: BlockKey = ROOT) -> list[Path]:
    """Blocks with these keys, one behind the other."""
    paths, parent = [], root
    for place, number in enumerate(numbers, 1):
        data = block_bytes(key(number), parent, end=place * TOKENS)
        paths.append(put(folder, key(number), parent, data))
        parent = key(number)
    return paths

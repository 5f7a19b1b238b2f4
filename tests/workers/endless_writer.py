"""Writes blocks into a folder until it is killed, and prints the number of each that it has committed."""

import random
import sys
from pathlib import Path

from pomona.cache.disk import BlockFolder
from pomona.cache.index import Owner
from pomona.cache.layout import KVLayout, plain
from pomona.cache.messages import BlockKey, Commit, Reserve, Reserved
from pomona.cache.service import CacheService
from pomona.config import CacheConfig
from pomona.workers.block_file import BlockFormat, write

BLOCK = 128
FORM = BlockFormat(KVLayout((plain(2, 64, 64, "bfloat16"),) * 4), BLOCK)
PAYLOAD_BYTES = FORM.payload_bytes(BLOCK)
QUOTA = 8 * PAYLOAD_BYTES


def block(number: int) -> tuple[BlockKey, BlockKey, bytes]:
    """Key, parent and payload of a block; from 1 on each is behind the one before."""
    payload = random.Random(number).randbytes(PAYLOAD_BYTES)
    return BlockKey(number.to_bytes(32, "little")), BlockKey((number - 1).to_bytes(32, "little")), payload


def main(folder: Path, number: int) -> None:
    service = CacheService(BlockFolder(folder, QUOTA), CacheConfig(max_bytes=QUOTA, min_free_bytes=0), 1)
    service.open(0.0)
    owner = Owner("worker:m", 1)
    while True:
        key, parent, payload = block(number)
        # Every fourth block starts a new chain, so that there is always something to evict.
        behind = parent if number % 4 else BlockKey(bytes(32))
        header = FORM.header(key, behind, payload, BLOCK)
        granted = service.handle(owner, Reserve(1, key, behind, len(header) + len(payload)), 0.0)
        assert isinstance(granted, Reserved)
        assert granted.path is not None, granted.reason
        write(Path(granted.path), header, payload)
        service.handle(owner, Commit(key), 0.0)
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

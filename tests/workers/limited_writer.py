"""Stores blocks under a limit on the size of a file, which makes a real write fail without a disk of its own.

Arguments: endpoint, incarnation of the cache service, limit in bytes, blocks. Prints how many were stored and dropped.
"""

import resource
import sys

from pomona.cache.client import CacheClient
from pomona.runtime.control import ActorName, ActorStatus, Roster
from pomona.runtime.mailbox import Peer
from pomona.workers.writeback import BlockWriter, Pending
from tests.workers.endless_writer import BLOCK, FORM, block


def main(endpoint: str, incarnation: int, limit: int, blocks: int) -> None:
    client = CacheClient(endpoint, Peer("worker:limited", 1), timeout_s=20.0)
    client.on_roster(Roster((ActorStatus(ActorName("cache"), "cache", incarnation, "ready"),)))
    writer = BlockWriter(client, FORM)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for number in range(1, 1 + blocks):
        key, parent, payload = block(number)
        writer.put(Pending(key, parent, bytearray(payload), BLOCK))
    assert writer.close(20.0)
    client.close()
    print(writer.stored, writer.dropped)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

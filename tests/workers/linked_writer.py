"""Stores files through a running cache service until it is killed, and prints the number of each that it has committed.

Arguments: endpoint, incarnation of the service, own incarnation, number to start with.
"""

import random
import sys
from hashlib import sha256

from pomona.cache.client import CacheClient, Refusal
from pomona.cache.messages import BlockKey
from pomona.runtime.control import ActorName, ActorStatus, Roster
from pomona.runtime.mailbox import Peer
from pomona.workers.block_file import write

NAME = "worker:writer"
CHAIN = 4
"""Files of one chain; there is always a tail to evict."""


def key(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(32, "little"))


def parent(number: int) -> BlockKey:
    return key(number - 1 if number % CHAIN else 0)


def content(number: int) -> tuple[bytes, bytes]:
    """A digest in front, and what it is of: 64 to 320 KiB, different for each number."""
    source = random.Random(number)
    payload = source.randbytes(source.randint(64 << 10, 320 << 10))
    return sha256(payload).digest(), payload


def main(endpoint: str, service: int, incarnation: int, number: int) -> None:
    client = CacheClient(endpoint, Peer(NAME, incarnation), timeout_s=30.0)
    client.on_roster(Roster((ActorStatus(ActorName("cache"), "cache", service, "ready"),)))
    while True:
        header, payload = content(number)
        grant = client.reserve(key(number), parent(number), len(header) + len(payload))
        if isinstance(grant, Refusal):
            raise SystemExit(grant.reason)
        write(grant.path, header, payload)
        if not client.commit(grant):
            raise SystemExit("the commit was not sent")
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

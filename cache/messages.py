"""What a worker and the cache service say to each other: keys and leases; payload travels through files."""

from typing import NewType

from pomona.runtime.wire import Message, Part

BlockKey = NewType("BlockKey", bytes)
"""32 bytes: the hash of the chain up to and including the block."""

LeaseId = NewType("LeaseId", int)

# worker -> cache service; `ticket` ties an answer to its question


READER = "@reader"
WRITER = "@writer"
"""A worker has two links, one for each thread; their peer names are the worker's own with one of these behind it."""


class Lookup(Message):
    """Lease the longest run of leading blocks that are stored. Answered by `Leased`."""

    ticket: int
    keys: tuple[BlockKey, ...]


class Release(Message):
    """End a lease. Not answered."""

    lease: LeaseId


class Reserve(Message):
    """Ask for room for a block that is about to be written. Answered by `Reserved`."""

    ticket: int
    key: BlockKey
    parent: BlockKey
    size: int
    """Bytes of the whole file."""


class Commit(Message):
    """The block's temporary file is complete: publish it. Not answered."""

    key: BlockKey


class Abort(Message):
    """The write failed; the reservation and the temporary file go. Not answered."""

    key: BlockKey
    reason: str = ""
    errno: int = 0
    """What the operating system said, or 0: a full or failing disk switches the tier off."""


class Reject(Message):
    """A leased block turned out to be bad when it was read: quarantine it. Not answered."""

    key: BlockKey
    reason: str


class AskCacheStats(Message):
    ticket: int


# cache service -> worker


class StoredBlock(Part):
    key: BlockKey
    path: str


class Leased(Message):
    """`blocks` may be fewer than asked for, or none (then `lease` is 0); they stay until `Release`."""

    ticket: int
    lease: LeaseId
    blocks: tuple[StoredBlock, ...]


class Reserved(Message):
    """Write to `path`, then `Commit`; `path` is None where the block is stored, being written, or does not fit."""

    ticket: int
    path: str | None
    reason: str = ""
    key: BlockKey = BlockKey(b"")
    present: bool = False
    """True without a path: the block is stored or on its way, so what follows it is of use."""


class CacheStats(Message):
    ticket: int
    blocks: int
    bytes: int
    max_bytes: int
    hits: int
    """Blocks leased."""
    misses: int
    """Blocks asked for and not stored."""
    stored: int
    evicted: int
    quarantined: int
    refused: int
    """Reservations that found no room, and writes that failed."""
    enabled: bool = True
    """False while nothing is written; what is stored may still be leased."""
    detail: str = ""
    """How full the tier is, or why it is off, for people."""
    leases: int = 0
    reserved_bytes: int = 0
    quarantined_bytes: int = 0


WorkerToCache = Lookup | Release | Reserve | Commit | Abort | Reject | AskCacheStats
CacheToWorker = Leased | Reserved | CacheStats

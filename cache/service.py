"""What the cache service decides: who gets a lease, who may write, what is evicted, when the tier is off.

No sockets and no clock here: `handle` answers one message, `tick` is called every few seconds, both are told the time.
"""

import errno
import itertools
import logging
from pathlib import Path
from typing import assert_never

from pomona.cache.block import Block
from pomona.cache.disk import BlockFiles, WrongSize
from pomona.cache.index import BlockIndex, Owner
from pomona.cache.messages import (
    Abort,
    AskCacheStats,
    BlockKey,
    CacheStats,
    CacheToWorker,
    Commit,
    Leased,
    Lookup,
    Reject,
    Release,
    Reserve,
    Reserved,
    StoredBlock,
    WorkerToCache,
)
from pomona.cache.switch import Switch
from pomona.config import CacheConfig

log = logging.getLogger(__name__)

DISK_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""What a write may fail with that the next write would meet as well."""

STALE_TEMPORARY_S = 600.0


class CacheService:
    """Owns the index and the files; files change before the index does, so that the account never says too little."""

    def __init__(self, files: BlockFiles, config: CacheConfig, incarnation: int) -> None:
        self._files = files
        self._config = config
        self._incarnation = incarnation
        self._attempts = itertools.count(1)
        self._temporary: dict[BlockKey, Path] = {}  # of each reservation
        self._switch = Switch()
        self._opened = False
        self._closing = False
        self._hits = self._misses = self._stored = self._evicted = self._quarantined = self._refused = 0
        self.index = BlockIndex()

    @property
    def detail(self) -> str:
        """For people: what is stored, or why nothing is."""
        if not self._config.enabled:
            return "off: cache.enabled is false"
        if self._switch.reason:
            return f"off: {self._switch.reason}"
        return f"{len(self.index)} blocks, {self.index.stored_bytes} of {self._config.max_bytes} bytes"

    # life

    def open(self, now: float) -> None:
        """Take the folder and bring it under the quota; where that fails the tier is off and tried again later."""
        if not self._config.enabled:
            return
        try:
            self._load()
        except OSError as error:
            self._switch.off(str(error), now)

    def _load(self) -> None:
        index = BlockIndex()
        index.load(self._files.open())
        self.index = index
        self._opened = True
        self._make_room()

    def tick(self, now: float, wall: float) -> None:
        """Housekeeping; `wall` is the time that files are stamped with."""
        if not self._config.enabled:
            return
        try:
            if self._opened:
                self._make_room()
                self._files.sweep(frozenset(self._temporary.values()), wall - STALE_TEMPORARY_S)
            if self._switch.due(now) and self._try_again():
                self._switch.on(now)
        except OSError as error:
            if self._opened and isinstance(error, FileNotFoundError):
                self._forget_all()
            self._switch.off(str(error), now)

    def _forget_all(self) -> None:
        """Somebody removed the folder, or a part of it that `open` makes; the next try begins with what is there."""
        self._files.close()
        self._temporary.clear()
        self.index = BlockIndex()
        self._opened = False

    def _try_again(self) -> bool:
        """True if the tier may write again. Raises OSError."""
        if not self._opened:
            self._load()
            return True
        if not self._make_room(self._switch.needs):
            return False
        self._files.probe(self._switch.needs)
        return True

    def close(self, now: float) -> None:
        """Writes that are still open are lost; the folder is free for another server."""
        for owner in self.index.owners():
            self.end(owner, now)
        self._files.close()

    def stop_writes(self) -> bool:
        """Refuse new reservations from now on; True once none is open."""
        self._closing = True
        return not self._temporary

    # room

    def _limit(self) -> int:
        """Bytes that all files of the folder may take: the quota, or what the disk's free floor leaves of it."""
        held = self.index.stored_bytes + self._files.quarantined_bytes
        return min(self._config.max_bytes, held + self._files.free_bytes() - self._config.min_free_bytes)

    def _make_room(self, extra: int = 0) -> bool:
        """Evict until stored and reserved blocks and `extra` bytes fit; False if they cannot. Raises OSError."""
        limit = self._limit() - extra
        while self.index.stored_bytes + self.index.reserved_bytes + self._files.quarantined_bytes > limit:
            block = self.index.victim()
            if block is None:
                return False
            self._files.remove(block)
            self.index.forget(block.key)
            self._evicted += 1
        return True

    # messages

    def handle(self, owner: Owner, message: WorkerToCache, now: float) -> CacheToWorker | None:
        match message:
            case Lookup():
                return self._lookup(owner, message)
            case Release():
                self.index.release(owner, message.lease)
            case Reserve():
                return self._reserve(owner, message, now)
            case Commit():
                self._commit(owner, message.key, now)
            case Abort():
                self._abort(owner, message, now)
            case Reject():
                self._reject(message, now)
            case AskCacheStats():
                return self._stats(message.ticket)
            case _:
                assert_never(message)
        return None

    def _lookup(self, owner: Owner, message: Lookup) -> Leased:
        found = self.index.leading(message.keys)
        if found:
            try:
                self._files.touch(found[-1])
            except FileNotFoundError:
                log.warning("block-vanished key=%s", found[-1].key.hex())
                self.index.forget(found[-1].key)
                found = found[:-1]
            except OSError as error:
                # Its place in the order after a restart is lost, and no more: the block may still be read.
                log.debug("touch-failed reason=%r", str(error))
        self._hits += len(found)
        self._misses += len(message.keys) - len(found)
        if found:
            self.index.touch(found[-1].key)
        lease = self.index.lease(owner, found)
        blocks = tuple(StoredBlock(block.key, str(self._files.path(block))) for block in found)
        return Leased(message.ticket, lease, blocks)

    def _reserve(self, owner: Owner, message: Reserve, now: float) -> Reserved:
        block = Block(message.key, message.parent, message.size)
        if block.key in self.index or self.index.reservation(block.key) is not None:
            return Reserved(message.ticket, None, "stored or being written", block.key, present=True)
        refusal = self._refusal(owner, block, now)
        if refusal:
            self._refused += 1
            return Reserved(message.ticket, None, refusal, block.key)
        path = self._files.temporary(block, f"{self._incarnation}-{next(self._attempts)}")
        self._temporary[block.key] = path
        return Reserved(message.ticket, str(path), key=block.key)

    def _refusal(self, owner: Owner, block: Block, now: float) -> str:
        """Why the block cannot be written, or an empty text, and then it is reserved."""
        if self._closing:
            return "the cache service is stopping"
        if not self._config.enabled or self._switch.reason:
            return self.detail
        if not 0 < block.size <= self._config.max_bytes or block.key == block.parent:
            return f"a block of {block.size} bytes does not fit a quota of {self._config.max_bytes}"
        self.index.reserve(owner, block)  # before there is room for it: it keeps its parent from eviction
        try:
            if self._make_room():
                return ""
            if not len(self.index) and self._limit() < self._config.max_bytes:
                floor = self._config.min_free_bytes
                self._switch.off(f"the disk has no more than cache.min_free_bytes={floor} free", now, block.size)
        except OSError as error:
            self._switch.off(str(error), now, block.size)
        self.index.abort(owner, block.key)
        return self.detail if self._switch.reason else "all stored blocks are in use, or before this one"

    def _commit(self, owner: Owner, key: BlockKey, now: float) -> None:
        reservation = self.index.reservation(key)
        if reservation is None or reservation.owner != owner:
            return  # of an incarnation before this one; `tick` sweeps what it wrote
        path = self._temporary.pop(key)
        try:
            self._files.publish(path, reservation.block)
        except (OSError, WrongSize) as error:
            self._refused += 1
            self.index.abort(owner, key)
            self._discard(path, now)
            if isinstance(error, OSError) and error.errno in DISK_TROUBLE:
                self._switch.off(str(error), now, reservation.block.size)
            else:
                log.warning("publish-failed key=%s reason=%r", key.hex(), str(error))
            return
        self.index.commit(owner, key)
        self._stored += 1

    def _abort(self, owner: Owner, message: Abort, now: float) -> None:
        reservation = self.index.reservation(message.key)
        if reservation is None or not self.index.abort(owner, message.key):
            return
        self._refused += 1
        self._discard(self._temporary.pop(message.key), now)
        if message.errno in DISK_TROUBLE:
            self._switch.off(message.reason, now, reservation.block.size)

    def _discard(self, path: Path, now: float) -> None:
        try:
            self._files.discard(path)
        except OSError as error:
            self._switch.off(str(error), now)

    def _reject(self, message: Reject, now: float) -> None:
        block = self.index.get(message.key)
        if block is None:
            return
        # Its reader has said so in the log, with path and reason; one line for one file is enough.
        log.debug("block-rejected key=%s reason=%r", message.key.hex(), message.reason)
        try:
            self._files.quarantine(block)
        except OSError as error:
            self._switch.off(str(error), now)
        self.index.forget(message.key)
        self._quarantined += 1

    def end(self, owner: Owner, now: float) -> None:
        """The owner is gone: its leases and reservations end, its unfinished files go."""
        for key in self.index.end(owner):
            self._discard(self._temporary.pop(key), now)

    def _stats(self, ticket: int) -> CacheStats:
        return CacheStats(
            ticket,
            blocks=len(self.index),
            bytes=self.index.stored_bytes,
            max_bytes=self._config.max_bytes,
            hits=self._hits,
            misses=self._misses,
            stored=self._stored,
            evicted=self._evicted,
            quarantined=self._quarantined,
            refused=self._refused,
            enabled=self._config.enabled and not self._switch.reason,
            detail=self.detail,
            leases=self.index.leases,
            reserved_bytes=self.index.reserved_bytes,
            quarantined_bytes=self._files.quarantined_bytes,
        )

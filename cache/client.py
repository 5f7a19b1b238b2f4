"""A worker's side of the cache service. Trouble with the cache is a miss or a dropped store, never an exception."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import zmq

from pomona.cache.channel import Channel
from pomona.cache.messages import (
    READER,
    WRITER,
    Abort,
    AskCacheStats,
    BlockKey,
    CacheStats,
    Commit,
    Leased,
    LeaseId,
    Lookup,
    Reject,
    Release,
    Reserve,
    Reserved,
    StoredBlock,
)
from pomona.runtime.control import Roster
from pomona.runtime.mailbox import Peer

log = logging.getLogger(__name__)

SERVICE = "cache"
LINGER_S = 0.5


class Lease(NamedTuple):
    """Stored blocks that stay until `release`; `blocks` may be fewer than asked for, or none."""

    id: LeaseId
    blocks: tuple[StoredBlock, ...]
    incarnation: int


class Grant(NamedTuple):
    """Room for one block: write the whole file to `path`, then `commit` or `abort`."""

    key: BlockKey
    path: Path
    incarnation: int


class Refusal(NamedTuple):
    """No room; `present` tells that the block is stored or on its way all the same."""

    reason: str
    present: bool = False


class CacheClient:
    """Two threads use it, each its own methods: the engine reads, the writer writes. Closed once both are done."""

    def __init__(self, endpoint: str, me: Peer, timeout_s: float = 1.0) -> None:
        # A context of its own: the mailbox's could not end while a crashing engine leaves these sockets open.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._reader = Channel(self._context, endpoint, Peer(me.name + READER, me.incarnation), timeout_s)
        self._writer = Channel(self._context, endpoint, Peer(me.name + WRITER, me.incarnation), timeout_s)
        self._serving: int | None = None  # incarnation of the service; set by the engine, read by both threads

    # the engine's thread

    def on_roster(self, roster: Roster) -> bool:
        """Follow the service to its present incarnation; True if that is another than before."""
        status = roster.find(SERVICE)
        serving = status.incarnation if status is not None and status.state == "ready" else None
        changed = serving != self._serving
        self._serving = serving
        self._reader.follow(serving)
        return changed

    def lookup(self, keys: Sequence[BlockKey]) -> Lease | None:
        """Lease the longest stored run of leading `keys`; None if the service is away or late."""
        serving = self._serving
        answer = self._reader.ask(lambda ticket: Lookup(ticket, tuple(keys)))
        if serving is None or not isinstance(answer, Leased):
            return None
        return Lease(answer.lease, answer.blocks, serving)

    def release(self, lease: Lease) -> None:
        if lease.blocks and lease.incarnation == self._serving:
            self._reader.tell(Release(lease.id))

    def reject(self, key: BlockKey, reason: str) -> None:
        """The file of this leased block is bad; it goes to quarantine."""
        self._reader.tell(Reject(key, reason))

    def stats(self) -> CacheStats | None:
        answer = self._reader.ask(AskCacheStats)
        return answer if isinstance(answer, CacheStats) else None

    # the writer's thread

    def reserve(self, key: BlockKey, parent: BlockKey, size: int) -> Grant | Refusal:
        """Room for a block file of `size` bytes."""
        serving = self._serving
        self._writer.follow(serving)
        answer = self._writer.ask(lambda ticket: Reserve(ticket, key, parent, size))
        if serving is None or not isinstance(answer, Reserved):
            return Refusal("the cache service is away")
        if answer.path is None:
            return Refusal(answer.reason, answer.present)
        return Grant(key, Path(answer.path), serving)

    def commit(self, grant: Grant) -> bool:
        """The file is complete; False if the service that granted the room is gone, and with it the file."""
        if grant.incarnation == self._serving and self._writer.tell(Commit(grant.key)):
            return True
        self._discard(grant)
        return False

    def abort(self, grant: Grant, reason: str, errno: int = 0) -> None:
        """The write failed, with this error number of the operating system if there was one."""
        if grant.incarnation != self._serving or not self._writer.tell(Abort(grant.key, reason, errno)):
            self._discard(grant)

    def _discard(self, grant: Grant) -> None:
        try:
            grant.path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("temporary-left path=%s reason=%r", grant.path, str(error))

    # the end

    def close(self) -> None:
        """Only once no thread uses the client; messages that have not left within half a second are lost."""
        self._reader.close(LINGER_S)
        self._writer.close(LINGER_S)
        self._context.term()

"""The thread that writes blocks behind the engine's back: a queue bounded by bytes that drops what does not fit."""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple

from pomona.cache.client import CacheClient, Refusal
from pomona.cache.messages import BlockKey
from pomona.workers.block_file import BlockFormat, write

log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 256 * 1024**2
MAX_KNOWN = 1 << 16
PAUSE_S = 5.0
"""After a refusal nothing is queued for so long: no copies are made for a full disk or a service that is away."""


class Pending(NamedTuple):
    key: BlockKey
    parent: BlockKey
    payload: bytearray
    end: int
    """Tokens up to the block's last."""


class BlockWriter:
    """`put` never waits. A block whose parent was dropped is dropped as well: no lookup could reach it."""

    def __init__(self, client: CacheClient, form: BlockFormat, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        self._client = client
        self._form = form
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._queue: deque[Pending] = deque()
        self._waiting: set[BlockKey] = set()  # queued or being written
        self._bytes = 0  # of the waiting
        self._known: OrderedDict[BlockKey, None] = OrderedDict()  # believed to be stored
        self._lost: set[BlockKey] = set()  # dropped since the queue was last empty
        self._paused_until = 0.0
        self._closed = False
        self._told_full = False  # since the queue was last empty
        self.stored = 0
        self.dropped = 0
        self.seconds = 0.0
        """Spent on reservations and writes."""
        self._thread = threading.Thread(target=self._run, name="block-writer", daemon=True)
        self._thread.start()

    # the engine's thread

    def wants(self, key: BlockKey) -> bool:
        """False if the block is stored, as far as this worker knows, or waits to be."""
        with self._changed:
            return key not in self._known and key not in self._waiting

    def has_room(self, end: int, aside: int = 0) -> bool:
        """True if one more block, which ends at token `end`, would be queued and has a chance to be stored.

        `aside` is the bytes of others that are about to be queued.
        """
        with self._changed:
            if self._closed or time.monotonic() < self._paused_until:
                return False
            size = self._form.payload_bytes(end)
            if self._bytes + aside + size <= self._max_bytes:
                return True
            if not self._told_full:
                log.warning("block-queue-full queued=%d block=%d limit=%d", self._bytes + aside, size, self._max_bytes)
                self._told_full = True
            return False

    def put(self, pending: Pending) -> None:
        with self._changed:
            self._queue.append(pending)
            self._waiting.add(pending.key)
            self._bytes += len(pending.payload)
            self._changed.notify_all()

    def drop(self, blocks: int) -> None:
        """Count blocks that were not even queued."""
        with self._changed:
            self.dropped += blocks

    def learn(self, stored: Iterable[BlockKey], missing: Iterable[BlockKey]) -> None:
        """What a lookup found."""
        with self._changed:
            for key in missing:
                self._known.pop(key, None)
            for key in stored:
                self._know(key)

    def unlearn(self) -> None:
        """The service is another: nothing is known of what it stores."""
        with self._changed:
            self._known.clear()
            self._paused_until = 0.0

    def close(self, deadline_s: float) -> bool:
        """Write what is queued for at most `deadline_s` seconds and drop the rest; True if the thread has ended."""
        deadline = time.monotonic() + deadline_s
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting, deadline_s)
            self.dropped += len(self._queue)
            self._queue.clear()
        # One block may be on its way: a reservation takes its own deadline at most, a write as long as the disk does.
        self._thread.join(max(0.0, deadline - time.monotonic()) + 2.0)
        return not self._thread.is_alive()

    # the writer's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                pending = self._queue.popleft()
            begin = time.monotonic()
            refusal = self._store(pending)
            with self._changed:
                self.seconds += time.monotonic() - begin
                if refusal is None:
                    self.stored += 1
                elif not refusal.present:
                    self.dropped += 1
                    self._lost.add(pending.key)
                    self._paused_until = time.monotonic() + PAUSE_S
                if refusal is None or refusal.present:
                    self._know(pending.key)
                self._waiting.discard(pending.key)
                self._bytes -= len(pending.payload)
                if not self._queue:
                    self._lost.clear()
                    self._told_full = False
                self._changed.notify_all()

    def _know(self, key: BlockKey) -> None:
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _store(self, pending: Pending) -> Refusal | None:
        """None if the block was stored by this call."""
        if pending.parent in self._lost:
            return Refusal("its parent was dropped")
        header = self._form.header(pending.key, pending.parent, pending.payload, pending.end)
        grant = self._client.reserve(pending.key, pending.parent, len(header) + len(pending.payload))
        if isinstance(grant, Refusal):
            return grant
        try:
            write(grant.path, header, pending.payload)
        except OSError as error:
            log.debug("block-write-failed key=%s reason=%r", pending.key.hex(), str(error))
            self._client.abort(grant, str(error), error.errno or 0)
            return Refusal(str(error))
        return None if self._client.commit(grant) else Refusal("the cache service went away")

"""The stored prefixes of one model: what a request need not prefill, and what the next one will not have to."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pomona.cache.client import CacheClient, Lease
from pomona.cache.keys import chain
from pomona.cache.layout import KVLayout
from pomona.cache.messages import BlockKey
from pomona.runtime.control import Roster
from pomona.runtime.mailbox import now
from pomona.workers import blocks, layers
from pomona.workers.block_file import BlockError, BlockFormat, BlockPart
from pomona.workers.blocks import layout_of, supports
from pomona.workers.mark import Mark, take_mark
from pomona.workers.recent import RecentPrefixes, copy_prefix
from pomona.workers.slot_buffers import rounded
from pomona.workers.tiers import TierCounts, TierFigures
from pomona.workers.writeback import MAX_QUEUED_BYTES, BlockWriter, Pending

__all__ = ["PrefixStore", "layout_of", "supports"]

log = logging.getLogger(__name__)


def room_for(tokens: int) -> int:
    """Places of a buffer in which a prompt and the first step behind it are written without moving it."""
    return rounded(tokens + 1)


class PrefixStore:
    """Used by the engine's thread alone; its writer's thread handles plain bytes.

    Trouble with the cache service or its files is a prefix not restored or not stored, never an exception.
    """

    def __init__(
        self,
        client: CacheClient | None,
        root_for_salt: Callable[[str], BlockKey],
        layout: KVLayout,
        block_tokens: int,
        recent: RecentPrefixes | None = None,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        """Owns `client` and closes it; without one nothing is restored from or stored on disk.

        `recent` is the RAM tier; without one there is none. `max_queued_bytes` is the memory that blocks may take
        while they wait to be written.
        """
        self._recent = recent or RecentPrefixes(0)
        self._counts = TierCounts()
        self._client = client
        self._root_for_salt = root_for_salt
        self._form = BlockFormat(layout, block_tokens)
        self._writer = BlockWriter(client, self._form, max_queued_bytes) if client is not None else None

    @property
    def stored_blocks(self) -> int:
        """Blocks written and handed over to the cache service."""
        return self._writer.stored if self._writer is not None else 0

    @property
    def dropped_blocks(self) -> int:
        """Blocks that were not stored: the queue or the disk was full, or the service away."""
        return self._writer.dropped if self._writer is not None else 0

    @property
    def tiers(self) -> TierFigures:
        written = self._writer.seconds if self._writer is not None else 0.0
        return self._counts.figures(self._recent.entries, self._recent.nbytes, written)

    def keys_of(self, tokens: Sequence[int], salt: str) -> tuple[BlockKey, ...]:
        """The root, and behind it the key of each whole block."""
        root = self._root_for_salt(salt)
        return (root, *chain(root, tokens, self._form.tokens))

    def on_roster(self, roster: Roster) -> None:
        """Follow the cache service; to be called at every change of the roster."""
        if self._client is not None and self._writer is not None and self._client.on_roster(roster):
            self._writer.unlearn()

    def restore(self, tokens: Sequence[int], salt: str, caches: list[Any]) -> int:
        """Fill empty caches with the longest stored prefix of `tokens`, to the bit as it was computed.

        Returns the tokens restored: from the disk whole blocks, from the RAM tier any number or, with layers of state,
        one at which it was marked, whichever is more; at most `len(tokens)`. 0 if nothing is stored or a cache is of
        no known kind. Raises ValueError for caches that are not empty.
        """
        if not supports(caches):
            return 0
        if not all(layers.empty(cache) for cache in layers.leaves(caches)):
            raise ValueError("a prefix is restored into empty caches only")
        begin = now()
        hit = self._recent.longest(tokens, salt)
        in_memory = hit.length if hit is not None else 0
        on_disk = self._restore_from_disk(tokens, salt, caches, in_memory)
        if hit is not None and not on_disk:
            copy_prefix(hit, caches, room_for(len(tokens)))
        self._counts.restored(0 if on_disk else in_memory, on_disk, now() - begin)
        return on_disk or in_memory

    @property
    def keeps_recent(self) -> bool:
        """True if what is remembered can be restored at once."""
        return self._recent.keeps

    def in_memory(self, tokens: Sequence[int], salt: str) -> int:
        """Tokens of the longest prefix that the RAM tier holds."""
        hit = self._recent.longest(tokens, salt)
        return hit.length if hit is not None else 0

    def _restore_from_disk(self, tokens: Sequence[int], salt: str, caches: list[Any], at_least: int) -> int:
        """As `restore`, where the stored blocks hold more than `at_least` tokens; else 0."""
        if self._client is None or self._writer is None or not self._fits(caches):
            return 0
        if len(tokens) // self._form.tokens * self._form.tokens <= at_least:
            return 0
        chained = self.keys_of(tokens, salt)
        keys = chained[1:]
        lease = self._client.lookup(keys) if keys else None
        if lease is None:
            return 0
        try:
            if len(lease.blocks) * self._form.tokens <= at_least:
                return 0
            payloads, state = self._read(self._client, lease, chained)
            stored = len(payloads)
            self._writer.learn(keys[:stored], keys[stored:])
            if stored * self._form.tokens <= at_least:
                return 0
            return blocks.restore(payloads, state, self._form, caches, room_for(len(tokens)))
        finally:
            self._client.release(lease)

    def _fits(self, caches: list[Any]) -> bool:
        """True if empty caches are of the kinds, in the order, that the layout names."""
        each, layout = list(layers.leaves(caches)), self._form.layout.layers
        return len(each) == len(layout) and all(map(layers.fits, each, layout))

    def remember(self, tokens: Sequence[int], salt: str, caches: list[Any], marks: Sequence[Mark] = ()) -> None:
        """Keep what `caches` hold of `tokens` in memory; with layers of state they stand at the end of `tokens`.

        `marks` are what `marked` gave on the way there.
        """
        if supports(caches):
            self._recent.remember(tokens, salt, caches, marks)

    def fork(self, tokens: Sequence[int], salt: str) -> int:
        """Where `tokens` leave what the RAM tier holds, if state would be of use there: the next may leave there too.

        It is mostly the end of a system prompt. 0 where no layer holds state.
        """
        return self._recent.shared(tokens, salt) if self._form.layout.has_state else 0

    def marked(self, marks: Sequence[Mark], caches: list[Any], held: int, fork: int) -> list[Mark]:
        """`marks`, for `remember`, and what layers of state hold behind `held` tokens if a block or `fork` ends there.

        Older ones are left out as far as they are more than the RAM tier would keep.
        """
        if not self.keeps_recent or not self._form.layout.has_state or (held % self._form.tokens and held != fork):
            return list(marks)
        return self._recent.thinned([*marks, take_mark(caches, held)])

    def chunk(self, done: int, count: int) -> int:
        """How many of the next `count` tokens behind `done` one forward may compute.

        State can be taken only where a forward ends, so with layers of state none goes beyond the end of a block.
        """
        if not self._form.layout.has_state or (self._writer is None and not self.keeps_recent):
            return count
        return min(count, self._form.tokens - done % self._form.tokens)

    def forget(self) -> None:
        """Empty the RAM tier, and count anew."""
        self._recent.clear()
        self._counts.reset()

    def sound(self, caches: Sequence[Any], start: int, stop: int) -> bool:
        """False if a forward left something in `caches` for tokens `start` to `stop` that must not be kept."""
        if start == stop or not (self.keeps_recent or self._writer is not None) or not supports(caches):
            return True
        return layers.finite(caches, start, stop)

    def _read(
        self, client: CacheClient, lease: Lease, chained: Sequence[BlockKey]
    ) -> tuple[list[memoryview], memoryview]:
        """The slices of the blocks up to the first bad one, which is rejected, and the state of the last of them.

        `chained` is the root and the keys.
        """

        def part(index: int, which: BlockPart) -> memoryview | None:
            parent, key = chained[index : index + 2]
            try:
                if lease.blocks[index].key != key:
                    raise BlockError(f"the service answered with block {lease.blocks[index].key.hex()}")
                path = Path(lease.blocks[index].path)
                return self._form.read(path, key, parent, (index + 1) * self._form.tokens, which)
            except BlockError as error:
                log.warning("block-bad path=%s reason=%r", lease.blocks[index].path, str(error))
                client.reject(key, str(error))
                return None

        payloads: list[memoryview] = []
        for index in range(len(lease.blocks)):
            payload = part(index, "slices")
            if payload is None:
                break
            payloads.append(payload)
        while payloads and self._form.layout.has_state:
            state = part(len(payloads) - 1, "state")
            if state is not None:
                return payloads, state
            payloads.pop()
        return payloads, memoryview(b"")

    def wants(self, stored: int, held: int) -> bool:
        """True if a row that holds `held` tokens, of which `stored` were handed over before, has more to store."""
        if self.keeps_recent and held > stored:
            return True
        return self._writer is not None and bool(self._new_blocks(stored, held))

    def _new_blocks(self, stored: int, held: int) -> range:
        """The whole blocks within `held` tokens behind those within `stored` that can still be stored.

        With layers of state, which stand at `held`: the block that ends there, if it is the first of them; the state
        at the ends of those before it is gone, and without them nothing finds it.
        """
        size = self._form.tokens
        new = range(max(0, stored) // size, held // size)
        if self._form.layout.has_state and (len(new) != 1 or held % size):
            return range(0)
        return new

    def store(
        self,
        tokens: Sequence[int],
        salt: str,
        caches: list[Any],
        start: int,
        last: bool = True,
        aside: list[Pending] | None = None,
    ) -> int:
        """Queue the whole blocks of `tokens` that `caches` hold, from the block of token `start` on.

        With layers of state, which stand at the end of `tokens`, that is the block that ends there, or none. Blocks
        that are stored already are passed over. What the queue cannot take is dropped and counted, unless it is not
        the `last` time that it is handed over. The caches may change as soon as this returns. Where there is an
        `aside`, blocks go there, for `put`, and not into the queue.

        Returns what `start` is to be for the tokens that follow.
        """
        if self._writer is None or not supports(caches):
            return len(tokens)
        size, held, stateful = self._form.tokens, len(tokens), self._form.layout.has_state
        if not stateful:
            held = min(held, *(cache.offset for cache in layers.leaves(caches)))
        if held // size <= start // size:
            return held
        new = self._new_blocks(start, held)
        chained = self.keys_of(tokens[:held], salt)
        for block in new:
            parent, key = chained[block], chained[block + 1]
            if self._writer.wants(key):
                pending = self._take(self._writer, parent, key, caches, block, aside or ())
                if pending is None:
                    break
                if aside is None:
                    self._writer.put(pending)
                else:
                    aside.append(pending)
            start = (block + 1) * size
        else:
            if new:
                return held
            # Behind a block that was dropped, nothing of a prompt can be stored; an answer never was.
            self._writer.drop(int(not last and held % size == 0))
            return start
        if last or stateful:  # state is not there a second time
            self._writer.drop(sum(self._writer.wants(key) for key in chained[start // size + 1 :]))
        return start

    def put(self, blocks: Sequence[Pending]) -> None:
        """Queue blocks that `store` has put aside."""
        for pending in blocks:
            if self._writer is not None and self._writer.wants(pending.key):
                self._writer.put(pending)

    def take_back(self, tokens: Sequence[int], salt: str, beyond: int) -> None:
        """What `remember` was told of `tokens` is of no use behind the first `beyond`."""
        self._recent.take_back(tokens, salt, beyond)

    def _take(
        self,
        writer: BlockWriter,
        parent: BlockKey,
        key: BlockKey,
        caches: list[Any],
        block: int,
        aside: Sequence[Pending],
    ) -> Pending | None:
        """Copy one block for the writer; None if it cannot be had or there is no room beside those put aside."""
        start = block * self._form.tokens
        if not writer.has_room(start + self._form.tokens, sum(len(other.payload) for other in aside)):
            return None
        begin = now()
        try:
            payload = blocks.extract(caches, start, self._form)
        except BlockError as error:
            log.warning("blocks-not-stored reason=%r", str(error))
            return None
        self._counts.stored(now() - begin)
        return Pending(key, parent, payload, start + self._form.tokens)

    def close(self, deadline_s: float) -> None:
        """Write what is queued for at most `deadline_s` seconds, drop the rest, and close the client."""
        if self._client is None or self._writer is None:
            return
        if self._writer.close(deadline_s):
            self._client.close()
        else:
            log.warning("writer-stuck; its links end with the process")

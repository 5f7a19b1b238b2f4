"""Which blocks are stored, who reads or writes them, and which goes next. Pure: no files, no clock, no sockets.

Blocks form trees by their parents. A chain is touched from its tail to its head, so a parent is always more recent than
its children, and the least recent block that nobody holds is a tail.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pomona.cache.block import Block
from pomona.cache.messages import BlockKey, LeaseId

NO_LEASE = LeaseId(0)


class Owner(NamedTuple):
    """The incarnation of an actor that leases end with."""

    name: str
    incarnation: int


class Lease(NamedTuple):
    owner: Owner
    keys: tuple[BlockKey, ...]


class Reservation(NamedTuple):
    owner: Owner
    block: Block


class BlockIndex:
    """`stored_bytes` and `reserved_bytes` are the whole account; whoever owns the index keeps them under the quota."""

    def __init__(self) -> None:
        self.stored_bytes = 0
        self.reserved_bytes = 0
        self._stored: OrderedDict[BlockKey, Block] = OrderedDict()  # least recent first
        self._reserved: dict[BlockKey, Reservation] = {}
        self._leases: dict[LeaseId, Lease] = {}
        self._pins: Counter[BlockKey] = Counter()  # leases on a block
        self._children: Counter[BlockKey] = Counter()  # stored or reserved blocks behind a key, itself stored or not
        self._last_lease = 0

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._stored

    def get(self, key: BlockKey) -> Block | None:
        return self._stored.get(key)

    def blocks(self) -> tuple[Block, ...]:
        """All stored blocks, least recent first."""
        return tuple(self._stored.values())

    def load(self, blocks: Iterable[Block]) -> None:
        """Start from blocks that are already stored, given least recent first; raises ValueError if not empty.

        Only the block that was asked for carries its recency: its ancestors were used with it.
        """
        if self._stored or self._reserved:
            raise ValueError("an index is loaded once, while it is empty")
        given = {block.key: block for block in blocks}
        newest_first: OrderedDict[BlockKey, Block] = OrderedDict()
        for block in reversed(given.values()):
            path: OrderedDict[BlockKey, Block] = OrderedDict()
            step: Block | None = block
            while step is not None and step.key not in newest_first and step.key not in path:
                path[step.key] = step
                step = given.get(step.parent)
            for step in reversed(path.values()):
                newest_first[step.key] = step
        for block in reversed(newest_first.values()):
            self._add(block)

    def _add(self, block: Block) -> None:
        self._stored[block.key] = block
        self._children[block.parent] += 1
        self.stored_bytes += block.size

    def leading(self, keys: Sequence[BlockKey]) -> tuple[Block, ...]:
        """The longest run of leading keys that are stored."""
        found: list[Block] = []
        for key in keys:
            block = self._stored.get(key)
            if block is None:
                break
            found.append(block)
        return tuple(found)

    def touch(self, key: BlockKey) -> None:
        """This block was used, and with it all before it; nothing happens if it is not stored."""
        for _ in range(len(self._stored)):  # a bound, since file names could be forged into a ring
            block = self._stored.get(key)
            if block is None:
                return
            self._stored.move_to_end(key)
            key = block.parent

    # leases

    def lease(self, owner: Owner, blocks: Sequence[Block]) -> LeaseId:
        """Keep these blocks until `release`, or the end of their owner; NO_LEASE for no blocks."""
        if not blocks:
            return NO_LEASE
        self._last_lease += 1
        lease = LeaseId(self._last_lease)
        keys = tuple(block.key for block in blocks)
        self._leases[lease] = Lease(owner, keys)
        self._pins.update(keys)
        return lease

    def release(self, owner: Owner, lease: LeaseId) -> bool:
        """False if this owner holds no such lease, which is legal."""
        held = self._leases.get(lease)
        if held is None or held.owner != owner:
            return False
        del self._leases[lease]
        for key in held.keys:
            _decrease(self._pins, key)
        return True

    @property
    def leases(self) -> int:
        return len(self._leases)

    # reservations

    def reserve(self, owner: Owner, block: Block) -> None:
        """Account for a block that is about to be written; its parent stays as long.

        Raises ValueError if the block is stored or reserved.
        """
        if block.key in self._stored or block.key in self._reserved:
            raise ValueError(f"block {block.key.hex()} is already stored or being written")
        self._reserved[block.key] = Reservation(owner, block)
        self._children[block.parent] += 1
        self.reserved_bytes += block.size

    def reservation(self, key: BlockKey) -> Reservation | None:
        return self._reserved.get(key)

    def commit(self, owner: Owner, key: BlockKey) -> bool:
        """The reserved block is stored now, and the most recent; False if this owner has no such reservation."""
        block = self._end_reservation(owner, key)
        if block is None:
            return False
        self._add(block)
        self.touch(key)
        return True

    def abort(self, owner: Owner, key: BlockKey) -> bool:
        """The block will not come; False if this owner has no such reservation, which is legal."""
        return self._end_reservation(owner, key) is not None

    def _end_reservation(self, owner: Owner, key: BlockKey) -> Block | None:
        held = self._reserved.get(key)
        if held is None or held.owner != owner:
            return None
        del self._reserved[key]
        _decrease(self._children, held.block.parent)
        self.reserved_bytes -= held.block.size
        return held.block

    # the end of blocks and owners

    def victim(self) -> Block | None:
        """The block to evict next: the least recent that is not leased and has nothing stored or coming behind it."""
        return next((block for block in self._stored.values() if self._is_free(block.key)), None)

    def _is_free(self, key: BlockKey) -> bool:
        return not self._pins[key] and not self._children[key]

    def forget(self, key: BlockKey) -> None:
        """The block is no longer stored. Leases on its key stay open and keep what is stored under it again."""
        block = self._stored.pop(key, None)
        if block is not None:
            _decrease(self._children, block.parent)
            self.stored_bytes -= block.size

    def owners(self) -> frozenset[Owner]:
        """All who hold a lease or a reservation."""
        holders = {lease.owner for lease in self._leases.values()}
        return frozenset(holders | {reservation.owner for reservation in self._reserved.values()})

    def reservations(self) -> tuple[Reservation, ...]:
        return tuple(self._reserved.values())

    def end(self, owner: Owner) -> tuple[BlockKey, ...]:
        """The owner is gone: end its leases and reservations; returns the keys that will not come."""
        for lease, held in list(self._leases.items()):
            if held.owner == owner:
                self.release(owner, lease)
        keys = tuple(key for key, held in self._reserved.items() if held.owner == owner)
        for key in keys:
            self.abort(owner, key)
        return keys


def _decrease(counter: Counter[BlockKey], key: BlockKey) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]

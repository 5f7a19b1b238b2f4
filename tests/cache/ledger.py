"""What the cache service owes its callers, in the plainest words: every question is answered by looking at everything.

Slow on purpose. It knows nothing of how the index or the folder are made, only what they promise.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from pomona.cache.block import Block
from pomona.cache.index import Owner
from pomona.cache.messages import BlockKey
from pomona.cache.quarantine import MAX_FILES


@dataclass
class Counts:
    hits: int = 0
    misses: int = 0
    stored: int = 0
    evicted: int = 0
    quarantined: int = 0
    refused: int = 0


class Aside(NamedTuple):
    """A file in quarantine."""

    name: str
    size: int
    stamp: int


@dataclass
class Ledger:
    """All sizes in bytes. `disk` is what the disk holds, `foreign` what others have on it."""

    quota: int
    quarantine_quota: int
    floor: int
    disk: int
    foreign: int = 0
    stored: list[Block] = field(default_factory=list)
    """Least recent first."""
    files: dict[str, int] = field(default_factory=dict)
    """Real sizes of the files of stored blocks; one that vanished has none."""
    stamps: dict[str, int] = field(default_factory=dict)
    """When each file was last asked for."""
    reserved: dict[BlockKey, tuple[Owner, Block]] = field(default_factory=dict)
    written: dict[BlockKey, int] = field(default_factory=dict)
    """Bytes in the temporary file of a reservation."""
    leases: dict[int, tuple[Owner, list[Block]]] = field(default_factory=dict)
    quarantine: list[Aside] = field(default_factory=list)
    off: bool = False
    needs: int = 0
    counts: Counts = field(default_factory=Counts)
    clock: int = 0
    last_lease: int = 0

    # what there is

    def get(self, key: BlockKey) -> Block | None:
        return next((block for block in self.stored if block.key == key), None)

    @property
    def stored_bytes(self) -> int:
        return sum(block.size for block in self.stored)

    @property
    def reserved_bytes(self) -> int:
        return sum(block.size for _, block in self.reserved.values())

    @property
    def quarantined_bytes(self) -> int:
        return sum(held.size for held in self.quarantine)

    @property
    def used(self) -> int:
        """What really lies in the folder."""
        return sum(self.files.values()) + sum(self.written.values()) + self.quarantined_bytes

    @property
    def free(self) -> int:
        return self.disk - self.foreign - self.used

    @property
    def limit(self) -> int:
        held = self.stored_bytes + self.quarantined_bytes
        return min(self.quota, held + self.free - self.floor)

    @property
    def victim(self) -> Block | None:
        leased = {block.key for _, blocks in self.leases.values() for block in blocks}
        coming = [block for _, block in self.reserved.values()]
        parents = {block.parent for block in [*self.stored, *coming]}
        return next((block for block in self.stored if block.key not in leased | parents), None)

    # what changes it

    def _touch(self, block: Block | None) -> None:
        """The block was used, and with it all before it, the first one last."""
        while block is not None:
            self.stored.remove(block)
            self.stored.append(block)
            block = self.get(block.parent)

    def _stamp(self, block: Block) -> None:
        self.clock += 1
        self.stamps[block.file_name] = self.clock

    def _forget(self, block: Block) -> None:
        self.stored.remove(block)
        self.files.pop(block.file_name, None)

    def make_room(self, extra: int = 0) -> bool:
        """The limit is looked up once: a disk may be slow to give back what was removed."""
        limit = self.limit - extra
        while self.stored_bytes + self.reserved_bytes + self.quarantined_bytes > limit:
            victim = self.victim
            if victim is None:
                return False
            self._forget(victim)
            self.counts.evicted += 1
        return True

    def _switch_off(self, needs: int) -> None:
        self.off, self.needs = True, max(self.needs, needs)

    def reserve(self, owner: Owner, block: Block) -> str:
        """`granted`, `present` or `refused`."""
        if self.get(block.key) is not None or block.key in self.reserved:
            return "present"
        if not self.off and 0 < block.size <= self.quota:
            self.reserved[block.key] = owner, block
            if self.make_room():
                return "granted"
            if not self.stored and self.limit < self.quota:
                self._switch_off(block.size)
            del self.reserved[block.key]
        self.counts.refused += 1
        return "refused"

    def _holds(self, owner: Owner, key: BlockKey) -> bool:
        return key in self.reserved and self.reserved[key][0] == owner

    def commit(self, owner: Owner, key: BlockKey) -> None:
        if not self._holds(owner, key):
            return
        _, block = self.reserved.pop(key)
        if self.written.pop(key, None) != block.size:
            self.counts.refused += 1
            return
        self.stored.append(block)
        self.files[block.file_name] = block.size
        self._stamp(block)
        self._touch(block)
        self.counts.stored += 1

    def abort(self, owner: Owner, key: BlockKey, *, disk_full: bool) -> None:
        if not self._holds(owner, key):
            return
        _, block = self.reserved.pop(key)
        self.written.pop(key, None)
        self.counts.refused += 1
        if disk_full:
            self._switch_off(block.size)

    def lookup(self, owner: Owner, keys: list[BlockKey]) -> list[Block]:
        found: list[Block] = []
        for key in keys:
            block = self.get(key)
            if block is None:
                break
            found.append(block)
        if found and found[-1].file_name not in self.files:
            self._forget(found.pop())
        elif found:
            self._stamp(found[-1])
        self.counts.hits += len(found)
        self.counts.misses += len(keys) - len(found)
        if found:
            self._touch(found[-1])
            self.last_lease += 1
            self.leases[self.last_lease] = owner, found
        return found

    def release(self, owner: Owner, lease: int) -> None:
        if lease in self.leases and self.leases[lease][0] == owner:
            del self.leases[lease]

    def reject(self, key: BlockKey) -> None:
        block = self.get(key)
        if block is not None:
            self._put_aside(block)
            self.counts.quarantined += 1

    def _put_aside(self, block: Block) -> None:
        name = block.file_name
        if name in self.files:
            self.quarantine = [held for held in self.quarantine if held.name != name]
            self.quarantine.append(Aside(name, self.files[name], self.stamps[name]))
        self._trim()
        self._forget(block)

    def _trim(self) -> None:
        while len(self.quarantine) > MAX_FILES or self.quarantined_bytes > self.quarantine_quota:
            del self.quarantine[0]

    def end(self, owner: Owner) -> None:
        self.leases = {lease: held for lease, held in self.leases.items() if held[0] != owner}
        for key in [key for key, (holder, _) in self.reserved.items() if holder == owner]:
            del self.reserved[key]
            self.written.pop(key, None)

    def tick(self) -> None:
        """Housekeeping, at a time when a tier that is off is looked at again."""
        self.make_room()
        if self.off and self.make_room(self.needs):
            self.off, self.needs = False, 0

    def restart(self) -> None:
        """Only the files outlast it. One of the wrong size is put aside."""
        self.reserved, self.written, self.leases, self.last_lease = {}, {}, {}, 0
        self.off, self.needs, self.counts = False, 0, Counts()
        self.quarantine.sort(key=lambda held: held.stamp)
        for block in [block for block in self.stored if self.files.get(block.file_name) != block.size]:
            self._put_aside(block)
        for block in sorted(self.stored, key=lambda block: self.stamps[block.file_name]):
            self._touch(block)
        self.make_room()

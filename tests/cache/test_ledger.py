"""The cache service over a real folder does what the ledger does, whatever is asked and whatever befalls its files."""

import errno
import os
import random
from pathlib import Path

import pytest

from pomona.cache.block import Block
from pomona.cache.disk import BlockFolder
from pomona.cache.index import NO_LEASE, Owner
from pomona.cache.messages import (
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
)
from pomona.cache.service import CacheService
from pomona.cache.switch import LAST_RETRY_S
from pomona.config import CacheConfig
from tests.cache.ledger import Ledger

QUOTA, QUARANTINE, FLOOR, DISK = 200, 25, 30, 400
OWNERS = [Owner("worker:m", 1), Owner("worker:m", 2), Owner("worker:n", 1)]
BLOCKS = 60
OPERATIONS = {
    "reserve": 30,
    "commit": 26,
    "abort": 4,
    "lookup": 18,
    "release": 14,
    "reject": 2,
    "end": 1,
    "tick": 6,
    "restart": 1,
    "vanish": 1,
    "cut": 1,
    "foreign": 2,
}


def key(number: int) -> BlockKey:
    """All under one folder, so that a scan is short."""
    return BlockKey(b"\xab" + number.to_bytes(31, "little"))


def number_of(block: Block) -> int:
    return int.from_bytes(block.key[1:], "little")


def path_to(number: int) -> list[BlockKey]:
    """The chain from its head to this block; 0 is the root."""
    return [*path_to(number // 2), key(number)] if number else []


class Disk(BlockFolder):
    """A folder whose times never tie, on a disk of a certain size."""

    foreign = 0
    clock = 0

    def files(self) -> dict[str, int]:
        folders = (self._blocks / "ab", self._temporary, self._root / "quarantine")
        return {
            entry.path: entry.stat().st_size for folder in folders if folder.exists() for entry in os.scandir(folder)
        }

    def free_bytes(self) -> int:
        return DISK - self.foreign - sum(self.files().values())

    def _stamp(self, path: Path) -> None:
        self.clock += 1
        os.utime(path, ns=(self.clock * 1000, self.clock * 1000))

    def publish(self, temporary: Path, block: Block) -> None:
        super().publish(temporary, block)
        self._stamp(self.path(block))

    def touch(self, block: Block) -> None:
        super().touch(block)
        self._stamp(self.path(block))


class Trial:
    """One service and one ledger that are asked the same."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = Disk(folder, QUARANTINE)
        self.ledger = Ledger(QUOTA, QUARANTINE, FLOOR, DISK)
        self.now = 0.0
        self.incarnation = 0
        self.paths: dict[BlockKey, Path] = {}
        self.service = self._open()

    def _open(self) -> CacheService:
        self.incarnation += 1
        config = CacheConfig(max_bytes=QUOTA, min_free_bytes=FLOOR)
        service = CacheService(self.disk, config, self.incarnation)
        service.open(self.now)
        return service

    def step(self, operation: str) -> None:
        number, owner = self.rng.randint(1, BLOCKS), self.rng.choice(OWNERS)
        unnoticed = self.ledger.stored_bytes - sum(self.ledger.files.values())  # of files that vanished or were cut
        match operation:
            case "reserve":
                self._reserve(number, owner)
            case "commit" | "abort":
                self._end_write(operation, self._any_reserved(number), owner)
            case "lookup":
                self._lookup(number, owner)
            case "release":
                lease = self.rng.randint(0, self.ledger.last_lease + 1)
                if self.ledger.leases and self.rng.random() < 0.9:
                    lease = self.rng.choice(list(self.ledger.leases))
                    owner = self.ledger.leases[lease][0]
                self.service.handle(owner, Release(LeaseId(lease)), self.now)
                self.ledger.release(owner, lease)
            case "reject":
                if self.ledger.stored:
                    number = number_of(self.rng.choice(self.ledger.stored))
                self.service.handle(owner, Reject(key(number), "bad"), self.now)
                self.ledger.reject(key(number))
            case "end":
                self.service.end(owner, self.now)
                self.ledger.end(owner)
            case "tick":
                self.now += LAST_RETRY_S + 1
                self.service.tick(self.now, 0.0)
                self.ledger.tick()
            case "restart":
                if self.rng.random() < 0.5:
                    self.service.close(self.now)
                else:
                    self.disk.close()  # the end of the process: it lets go of the lock and sweeps nothing
                self.service = self._open()
                self.ledger.restart()
            case "vanish" | "cut":
                self._harm(operation)
            case "foreign":
                self.disk.foreign = self.ledger.foreign = self.rng.choice([0, 0, 0, 0, 180, 250, 300, 340, DISK])
        self.check(operation, unnoticed)

    def _reserve(self, number: int, owner: Owner) -> None:
        """Mostly a block that goes on where stored ones end."""
        if self.rng.random() < 0.8:
            ends = [0, *(number_of(block) for block in self.ledger.stored)]
            number = 2 * self.rng.choice(ends) + self.rng.randint(0, 1) or 1
        size = self.rng.choice([1, 4, 6, 8, 10, 12, 15] * 6 + [40, QUOTA, QUOTA + 1, 0])
        block = Block(key(number), key(number // 2), size)
        answer = self.service.handle(owner, Reserve(1, block.key, block.parent, size), self.now)
        assert isinstance(answer, Reserved)
        want = self.ledger.reserve(owner, block)
        assert (answer.path is not None, answer.present) == (want == "granted", want == "present"), answer
        if answer.path is not None:
            assert Path(answer.path) not in self.paths.values()
            self.paths[block.key] = Path(answer.path)

    def _any_reserved(self, number: int) -> BlockKey:
        if self.ledger.reserved and self.rng.random() < 0.95:
            return self.rng.choice(list(self.ledger.reserved))
        return key(number)

    def _end_write(self, how: str, which: BlockKey, owner: Owner) -> None:
        if which in self.ledger.reserved:
            holder, block = self.ledger.reserved[which]
            owner = holder if self.rng.random() < 0.9 else owner
            part = self.rng.choice([block.size] * 8 + [block.size - 1, None])
            if part is not None:
                self.paths[which].write_bytes(bytes(part))
                self.ledger.written[which] = part
        if how == "commit":
            self.service.handle(owner, Commit(which), self.now)
            self.ledger.commit(owner, which)
        else:
            trouble = self.rng.choice([0, 0, errno.ENOSPC, errno.EACCES])
            self.service.handle(owner, Abort(which, "trouble", trouble), self.now)
            self.ledger.abort(owner, which, disk_full=trouble == errno.ENOSPC)

    def _lookup(self, number: int, owner: Owner) -> None:
        if self.ledger.stored and self.rng.random() < 0.7:
            number = number_of(self.rng.choice(self.ledger.stored))
        keys = path_to(number)
        answer = self.service.handle(owner, Lookup(2, tuple(keys)), self.now)
        assert isinstance(answer, Leased)
        found = self.ledger.lookup(owner, keys)
        assert [block.key for block in answer.blocks] == [block.key for block in found]
        assert [Path(block.path).name for block in answer.blocks] == [block.file_name for block in found]
        assert answer.lease == (self.ledger.last_lease if found else NO_LEASE)

    def _harm(self, how: str) -> None:
        """Somebody removes a file or cuts it short; one of the latter at a time, since a scan has no order."""
        whole = [block for block in self.ledger.stored if self.ledger.files.get(block.file_name) == block.size]
        bad = [
            block for block in self.ledger.stored if self.ledger.files.get(block.file_name) not in (None, block.size)
        ]
        if not whole or (how == "cut" and bad):
            return
        block = self.rng.choice(whole)
        path = self.disk.path(block)
        if how == "vanish":
            path.unlink()
            del self.ledger.files[block.file_name]
        else:
            stamp = path.stat().st_mtime_ns
            os.truncate(path, block.size - 1)
            os.utime(path, ns=(stamp, stamp))
            self.ledger.files[block.file_name] -= 1

    def check(self, operation: str, unnoticed: int) -> None:
        index, ledger = self.service.index, self.ledger
        assert index.blocks() == tuple(ledger.stored)
        assert index.victim() == ledger.victim
        stats = self.service.handle(OWNERS[0], AskCacheStats(3), self.now)
        assert isinstance(stats, CacheStats)
        assert (stats.blocks, stats.bytes, stats.max_bytes) == (len(ledger.stored), ledger.stored_bytes, QUOTA)
        assert (stats.reserved_bytes, stats.quarantined_bytes) == (ledger.reserved_bytes, ledger.quarantined_bytes)
        assert (stats.leases, stats.enabled) == (len(ledger.leases), not ledger.off)
        counts = ledger.counts
        assert (stats.hits, stats.misses, stats.stored) == (counts.hits, counts.misses, counts.stored)
        assert (stats.evicted, stats.quarantined, stats.refused) == (
            counts.evicted,
            counts.quarantined,
            counts.refused,
        )
        assert ledger.used <= QUOTA
        if operation in ("tick", "restart"):
            assert ledger.free + unnoticed >= FLOOR or ledger.victim is None
            self.check_files()

    def check_files(self) -> None:
        """What lies in the folder is what the ledger says, and nothing else."""
        ledger = self.ledger
        there = {(Path(path).parent.name, Path(path).name): size for path, size in self.disk.files().items()}
        blocks = {("ab", name): size for name, size in ledger.files.items()}
        coming = {("tmp", self.paths[which].name): size for which, size in ledger.written.items()}
        assert there == blocks | coming | {("quarantine", held.name): held.size for held in ledger.quarantine}


def run(folder: Path, seed: int, operations: int) -> None:
    trial = Trial(folder, seed)
    names, weights = list(OPERATIONS), list(OPERATIONS.values())
    for count, operation in enumerate(trial.rng.choices(names, weights, k=operations)):
        try:
            trial.step(operation)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, operation {count} ({operation}): {error}") from error
    trial.service.close(trial.now)


@pytest.mark.parametrize("seed", range(3))
def test_the_service_does_what_the_ledger_does(tmp_path: Path, seed: int) -> None:
    run(tmp_path / "kv", seed, 1000)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_the_service_does_what_the_ledger_does_a_hundred_thousand_times(tmp_path: Path) -> None:
    for seed in range(100, 120):
        run(tmp_path / f"kv{seed}", seed, 5000)

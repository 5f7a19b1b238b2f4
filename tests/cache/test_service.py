import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from pomona.cache.block import Block
from pomona.cache.disk import BlockFolder
from pomona.cache.index import Owner
from pomona.cache.lock import FolderBusy, FolderLock
from pomona.cache.messages import (
    Abort,
    AskCacheStats,
    BlockKey,
    CacheStats,
    Commit,
    Leased,
    Lookup,
    Reject,
    Release,
    Reserve,
    Reserved,
)
from pomona.cache.service import STALE_TEMPORARY_S, CacheService
from pomona.cache.switch import FIRST_RETRY_S, LAST_RETRY_S
from pomona.config import CacheConfig

ANN, BEN = Owner("worker:m", 1), Owner("worker:n", 1)
ROOT = BlockKey(b"r" * 32)


def key(number: int) -> BlockKey:
    return BlockKey(bytes([number]) * 32) if number else ROOT


class Disk(BlockFolder):
    """A folder on a disk that the test can fill and break."""

    broken: int | None = None
    """The error number that every write fails with."""
    free = 1 << 40

    def _fail(self) -> None:
        if self.broken is not None:
            raise OSError(self.broken, os.strerror(self.broken))

    def publish(self, temporary: Path, block: Block) -> None:
        self._fail()
        super().publish(temporary, block)

    def probe(self, size: int) -> None:
        self._fail()
        super().probe(size)

    def remove(self, block: Block) -> None:
        if self.broken == errno.EROFS:
            self._fail()
        super().remove(block)

    def discard(self, temporary: Path) -> None:
        if self.broken == errno.EROFS:
            self._fail()
        super().discard(temporary)

    def free_bytes(self) -> int:
        return self.free


class Tier:
    """A service with a clock of its own."""

    def __init__(self, root: Path, quota: int = 100, floor: int = 0, enabled: bool = True) -> None:
        self.disk = Disk(root, 50)
        config = CacheConfig(max_bytes=quota, min_free_bytes=floor, enabled=enabled)
        self.service = CacheService(self.disk, config, incarnation=1)
        self.now = 1000.0
        self.service.open(self.now)

    def reserve(self, number: int, size: int = 10, owner: Owner = ANN, parent: int | None = None) -> Reserved:
        behind = key(number - 1 if parent is None else parent)
        answer = self.service.handle(owner, Reserve(7, key(number), behind, size), self.now)
        assert isinstance(answer, Reserved)
        assert (answer.ticket, answer.key) == (7, key(number))
        return answer

    def put(self, number: int, size: int = 10, owner: Owner = ANN, parent: int | None = None) -> bool:
        """True if the block was granted; it is written and committed then."""
        path = self.reserve(number, size, owner, parent).path
        if path is not None:
            Path(path).write_bytes(bytes(size))
            self.tell(Commit(key(number)), owner)
        return path is not None

    def tell(self, message: Commit | Abort | Reject | Release, owner: Owner = ANN) -> None:
        assert self.service.handle(owner, message, self.now) is None

    def lookup(self, *numbers: int, owner: Owner = ANN) -> Leased:
        answer = self.service.handle(owner, Lookup(8, tuple(key(n) for n in numbers)), self.now)
        assert isinstance(answer, Leased)
        assert answer.ticket == 8
        return answer

    def found(self, *numbers: int) -> int:
        leased = self.lookup(*numbers)
        self.tell(Release(leased.lease))
        return len(leased.blocks)

    def stats(self) -> CacheStats:
        answer = self.service.handle(ANN, AskCacheStats(9), self.now)
        assert isinstance(answer, CacheStats)
        return answer

    def tick(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.service.tick(self.now, self.now)

    def files(self) -> set[int]:
        return {path.name[0:2] and bytes.fromhex(path.name[:2])[0] for path in self.disk._blocks.glob("*/*")}


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path / "kv")


def test_what_was_committed_is_found_with_its_path(tier: Tier) -> None:
    assert tier.put(1)
    assert tier.put(2)
    leased = tier.lookup(1, 2, 3)
    assert [block.key for block in leased.blocks] == [key(1), key(2)]
    assert all(Path(block.path).stat().st_size == 10 for block in leased.blocks)
    stats = tier.stats()
    assert (stats.blocks, stats.bytes, stats.stored, stats.hits, stats.misses, stats.leases) == (2, 20, 2, 2, 1, 1)
    assert stats.enabled


def test_nothing_is_found_before_the_commit_or_after_an_abort(tier: Tier) -> None:
    path = tier.reserve(1).path
    assert path is not None
    Path(path).write_bytes(bytes(10))
    assert tier.found(1) == 0
    tier.tell(Abort(key(1), "the engine stopped"))
    assert not Path(path).exists()
    assert tier.found(1) == 0
    assert tier.stats().reserved_bytes == 0
    assert tier.put(1)


def test_a_stored_or_coming_block_is_not_written_twice(tier: Tier) -> None:
    tier.put(1)
    tier.reserve(2)
    for number in (1, 2):
        answer = tier.reserve(number, owner=BEN)
        assert answer.path is None
        assert answer.present


def test_the_quota_covers_stored_coming_and_quarantined_files(tmp_path: Path) -> None:
    tier = Tier(tmp_path / "kv", quota=40)
    tier.put(1, parent=0)
    tier.put(2, parent=0)
    tier.tell(Reject(key(2), "bad"))
    assert tier.reserve(3, size=15, parent=0).path
    assert tier.files() == {1}
    assert tier.reserve(4, size=10, parent=0).path
    assert tier.files() == set()
    refused = tier.reserve(5, size=10, parent=0)
    assert refused.path is None
    assert not refused.present
    stats = tier.stats()
    assert (stats.evicted, stats.refused, stats.quarantined, stats.quarantined_bytes) == (1, 1, 1, 10)
    assert stats.reserved_bytes == 25


def test_a_block_beyond_the_quota_or_behind_itself_is_refused(tier: Tier) -> None:
    tier.put(1)
    for answer in (
        tier.reserve(9, size=101),
        tier.reserve(9, size=0),
        tier.reserve(9, size=-5),
        tier.reserve(9, parent=9),
    ):
        assert answer.path is None
        assert "does not fit" in answer.reason
    assert tier.files() == {1}


def test_eviction_keeps_leased_blocks_and_takes_tails_first(tmp_path: Path) -> None:
    tier = Tier(tmp_path / "kv", quota=40)
    for number in (1, 2, 3):
        tier.put(number)
    lease = tier.lookup(1, 2).lease
    tier.put(10, size=20, parent=0)
    assert tier.files() == {1, 2, 10}
    assert not tier.put(11, size=40, parent=0)
    assert tier.files() == {1, 2}
    tier.tell(Release(lease))
    assert tier.put(11, size=25, parent=0)
    assert tier.files() == {1, 11}


def test_a_lease_ends_with_its_owner_and_so_does_a_write(tier: Tier) -> None:
    tier.put(1)
    tier.lookup(1, owner=BEN)
    path = Path(tier.reserve(2, owner=BEN).path or "")
    path.write_bytes(b"half")
    tier.service.end(BEN, tier.now)
    assert not path.exists()
    assert tier.stats().leases == 0
    assert tier.stats().reserved_bytes == 0


def test_a_rejected_block_is_put_aside_and_missed(tier: Tier) -> None:
    tier.put(1)
    tier.put(2)
    leased = tier.lookup(1, 2)
    tier.tell(Reject(key(1), "bad checksum"))
    tier.tell(Reject(key(1), "bad checksum"))
    assert tier.found(1, 2) == 0
    assert tier.stats().quarantined == 1
    assert not Path(leased.blocks[0].path).exists()
    assert tier.put(1)
    assert tier.found(1, 2) == 2


def test_a_short_write_is_not_stored_and_leaves_the_tier_on(tier: Tier) -> None:
    path = Path(tier.reserve(1).path or "")
    path.write_bytes(bytes(9))
    tier.tell(Commit(key(1)))
    assert tier.found(1) == 0
    assert not path.exists()
    assert tier.stats().enabled
    assert tier.stats().refused == 1


def test_others_neither_commit_nor_abort_a_write(tier: Tier) -> None:
    path = Path(tier.reserve(1).path or "")
    path.write_bytes(bytes(10))
    tier.tell(Commit(key(1)), owner=BEN)
    tier.tell(Abort(key(1), "", errno.ENOSPC), owner=BEN)
    assert tier.stats().enabled
    assert tier.stats().reserved_bytes == 10
    tier.tell(Commit(key(1)))
    assert tier.found(1) == 1


def test_a_vanished_file_is_a_miss(tier: Tier) -> None:
    tier.put(1)
    tier.put(2)
    tier.disk.remove(Block(key(2), key(1), 10))
    assert tier.found(1, 2) == 1
    assert tier.stats().blocks == 1


def test_recency_and_content_outlast_a_restart(tier: Tier, tmp_path: Path) -> None:
    tier.put(1)
    tier.put(2)
    tier.put(9, parent=0)
    for number, path in ((1, 10), (2, 20), (9, 30)):
        os.utime(next(tier.disk._blocks.glob(f"*/{key(number).hex()}-*")), (path, path))
    tier.found(1, 2)
    tier.reserve(10)
    tier.service.close(tier.now)
    again = Tier(tmp_path / "kv", quota=20)
    assert again.files() == {1, 2}
    assert again.found(1, 2) == 2
    assert again.service.detail == "2 blocks, 20 of 20 bytes"
    assert list(again.disk._temporary.iterdir()) == []


@pytest.mark.parametrize("trouble", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_switches_writing_off_with_one_warning_and_on_again(
    tier: Tier, trouble: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pomona.cache")
    tier.put(1)
    for number in (2, 3):
        path = tier.reserve(number, parent=0).path
        assert path is not None
    tier.disk.broken = trouble
    for number in (2, 3):
        tier.tell(Abort(key(number), os.strerror(trouble), trouble))
    assert not tier.put(4, parent=0)
    assert tier.stats().detail == f"off: {os.strerror(trouble)}"
    assert not tier.stats().enabled
    assert tier.found(1) == 1
    tier.tick(FIRST_RETRY_S - 1)
    tier.tick(1)
    tier.tick(2 * FIRST_RETRY_S - 1)
    assert len(caplog.records) == 1
    tier.disk.broken = None
    assert not tier.stats().enabled
    tier.tick(1)
    assert tier.stats().enabled
    assert tier.put(4, parent=0)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["tier-off", "tier-on"]


def test_trouble_that_returns_at_once_is_looked_at_less_and_less_often(tier: Tier) -> None:
    waits = []
    for _ in range(6):
        tier.reserve(1)
        tier.tell(Abort(key(1), "input/output error", errno.EIO))
        waited = 0.0
        while not tier.stats().enabled:
            tier.tick(1.0)
            waited += 1.0
        waits.append(waited)
    assert waits[0] == FIRST_RETRY_S
    assert waits == sorted(waits)
    assert waits[-1] == LAST_RETRY_S


def test_a_write_that_fails_at_its_commit_switches_off_too(tier: Tier) -> None:
    path = Path(tier.reserve(1).path or "")
    path.write_bytes(bytes(10))
    tier.disk.broken = errno.ENOSPC
    tier.tell(Commit(key(1)))
    assert not tier.stats().enabled
    assert not path.exists()
    assert tier.stats().reserved_bytes == 0


def test_what_cannot_be_removed_stays_in_the_account(tmp_path: Path) -> None:
    tier = Tier(tmp_path / "kv", quota=20)
    tier.put(1)
    tier.put(2)
    tier.disk.broken = errno.EROFS
    assert not tier.put(9, parent=0)
    assert not tier.stats().enabled
    assert tier.stats().bytes == 20
    assert tier.files() == {1, 2}


def test_housekeeping_that_fails_switches_off(tmp_path: Path) -> None:
    tier = Tier(tmp_path / "kv", floor=1000)
    tier.put(1)
    tier.disk.free = 999
    tier.disk.broken = errno.EROFS
    tier.tick()
    assert tier.stats().detail == f"off: [Errno {errno.EROFS}] {os.strerror(errno.EROFS)}"
    assert tier.found(1) == 1


@pytest.mark.parametrize("part", [".", "tmp"])
def test_a_folder_that_was_removed_is_made_again(tier: Tier, part: str) -> None:
    tier.put(1)
    tier.lookup(1)
    tier.reserve(2)
    shutil.rmtree(tier.disk._root / part)
    tier.tick()
    assert not tier.stats().enabled
    assert tier.stats().leases == tier.stats().reserved_bytes == 0
    tier.tick(5.0)
    assert tier.stats().enabled
    assert tier.found(1) == (0 if part == "." else 1)
    tier.tell(Commit(key(2)))
    assert tier.put(2)
    assert tier.found(2) == 1
    with pytest.raises(FolderBusy):
        FolderLock(tier.disk._root / "lock")
    assert tier.service.stop_writes()


def test_a_temporary_file_that_cannot_be_removed_switches_off(tier: Tier) -> None:
    tier.reserve(1)
    tier.disk.broken = errno.EROFS
    tier.tell(Abort(key(1), "the engine stopped"))
    assert not tier.stats().enabled


def test_writes_that_fill_the_quota_refuse_others_and_leave_the_tier_on(tier: Tier) -> None:
    for number in (1, 2):
        assert tier.reserve(number, size=50, parent=0).path
    assert not tier.put(3, parent=0)
    assert tier.stats().enabled


def test_quarantined_files_count_against_the_free_floor_once(tmp_path: Path) -> None:
    tier = Tier(tmp_path / "kv", floor=1000)
    for number in (1, 2):
        tier.put(number, parent=0)
    tier.tell(Reject(key(2), "bad"))
    tier.disk.free = 1005
    tier.tick()
    assert tier.files() == {1}
    assert tier.put(3, size=15, parent=0)
    assert tier.files() == {3}


def test_an_aborted_write_for_other_reasons_leaves_the_tier_on(tier: Tier) -> None:
    tier.reserve(1)
    tier.tell(Abort(key(1), "no such file", errno.ENOENT))
    assert tier.stats().enabled


def test_the_free_floor_shrinks_the_tier_and_then_stops_it(tmp_path: Path) -> None:
    tier = Tier(tmp_path / "kv", quota=100, floor=1000)
    for number in (1, 2, 3):
        tier.put(number)
    tier.disk.free = 1000
    assert not tier.put(4)
    assert tier.stats().enabled
    assert tier.put(4, parent=0)
    assert tier.files() == {1, 2, 4}
    tier.disk.free = 985
    tier.tick()
    assert tier.files() == {4}
    tier.disk.free = 900
    tier.tick()
    assert tier.files() == set()
    assert not tier.put(5, parent=0)
    assert "cache.min_free_bytes=1000" in tier.stats().detail
    tier.tick(FIRST_RETRY_S)
    assert not tier.stats().enabled
    tier.disk.free = 1009
    tier.tick(2 * FIRST_RETRY_S)
    assert not tier.stats().enabled
    tier.disk.free = 1010
    tier.tick(4 * FIRST_RETRY_S)
    assert tier.stats().enabled
    assert tier.put(5, parent=0)


def test_a_quota_lowered_below_what_is_stored_holds_from_the_start(tier: Tier, tmp_path: Path) -> None:
    for number in range(1, 9):
        tier.put(number)
    tier.service.close(tier.now)
    again = Tier(tmp_path / "kv", quota=35)
    assert again.files() == {1, 2, 3}
    assert again.stats().bytes == 30


def test_temporary_files_that_nobody_reserved_are_swept_in_time(tier: Tier) -> None:
    reserved = Path(tier.reserve(1).path or "")
    stray = reserved.with_name("stray")
    for path in (reserved, stray):
        path.write_bytes(b"half")
        os.utime(path, (tier.now, tier.now))
    tier.tick(STALE_TEMPORARY_S)
    assert stray.exists()
    tier.tick(1)
    assert not stray.exists()
    assert reserved.exists()


def test_a_folder_in_use_is_taken_over_when_it_is_free(
    tier: Tier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier.put(1)
    second = Tier(tmp_path / "kv")
    assert f"in use by process {os.getpid()}" in second.service.detail
    assert second.found(1) == 0
    assert not second.put(2)
    second.tick(FIRST_RETRY_S)
    tier.service.close(tier.now)
    second.tick(2 * FIRST_RETRY_S)
    assert second.found(1) == 1
    assert second.put(2)


def test_a_folder_that_cannot_be_made_leaves_the_tier_off(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tier = Tier(tmp_path / "file")
    assert tier.service.detail.startswith("off: ")
    assert str(tmp_path / "file") in tier.service.detail
    assert tier.found(1) == 0


def test_a_disabled_tier_touches_nothing(tmp_path: Path) -> None:
    tier = Tier(tmp_path / "kv", enabled=False)
    assert not tier.put(1)
    assert tier.found(1) == 0
    tier.tick(100)
    assert tier.service.detail == "off: cache.enabled is false"
    assert not (tmp_path / "kv").exists()


def test_a_stopping_service_ends_writes_and_starts_none(tier: Tier) -> None:
    path = Path(tier.reserve(1).path or "")
    path.write_bytes(bytes(10))
    assert not tier.service.stop_writes()
    assert not tier.put(2)
    tier.tell(Commit(key(1)))
    assert tier.service.stop_writes()
    assert tier.found(1) == 1

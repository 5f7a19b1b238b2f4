import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pomona.cache.client import CacheClient
from pomona.cache.messages import BlockKey
from pomona.workers.writeback import MAX_KNOWN, BlockWriter, Pending
from tests.cache.house import DEADLINE_S, CacheHouse, until
from tests.workers.endless_writer import BLOCK, FORM, PAYLOAD_BYTES, block


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CacheHouse]:
    with CacheHouse(tmp_path / "kv") as house:
        yield house


@pytest.fixture
def client(house: CacheHouse) -> Iterator[CacheClient]:
    with house.client(timeout_s=DEADLINE_S) as client:
        yield client


def pending(number: int) -> Pending:
    key, parent, payload = block(number)
    return Pending(key, parent, bytearray(payload), BLOCK)


def test_what_is_queued_at_the_end_is_still_written(client: CacheClient) -> None:
    writer = BlockWriter(client, FORM)
    for number in range(1, 9):
        writer.put(pending(number))
    assert writer.close(DEADLINE_S)
    assert (writer.stored, writer.dropped) == (8, 0)
    assert not writer.has_room(BLOCK)
    until(lambda: (stats := client.stats()) is not None and stats.blocks == 8, "the commits")


def test_the_end_does_not_wait_for_a_silent_service(house: CacheHouse) -> None:
    with house.client(timeout_s=0.05) as client:
        house.stop()
        writer = BlockWriter(client, FORM)
        for number in range(1, 9):
            writer.put(pending(number))
        assert writer.close(0.0)
    assert (writer.stored, writer.dropped) == (0, 8)


def test_a_block_behind_a_dropped_one_is_dropped(tmp_path: Path) -> None:
    """The quota holds one block; its child would need it evicted, and the child's child could never be reached."""
    with CacheHouse(tmp_path / "kv", max_bytes=PAYLOAD_BYTES + 4096) as house, house.client() as client:
        writer = BlockWriter(client, FORM)
        for number in (1, 2, 3):
            writer.put(pending(number))
        assert writer.close(DEADLINE_S)
        assert (writer.stored, writer.dropped) == (1, 2)
        stats = client.stats()
        assert stats is not None
        assert stats.refused == 1, "nobody asked for the third"


def test_blocks_are_wanted_until_they_are_stored_and_again_when_they_are_missing(client: CacheClient) -> None:
    writer = BlockWriter(client, FORM)
    one = pending(1)
    assert writer.wants(one.key)
    writer.put(one)
    assert not writer.wants(one.key)
    until(lambda: writer.stored == 1, "the write")
    assert not writer.wants(one.key)
    writer.learn([], [one.key])
    assert writer.wants(one.key)
    writer.put(one)
    assert writer.close(DEADLINE_S)
    assert not writer.wants(one.key)
    assert (writer.stored, writer.dropped) == (1, 0)
    writer.unlearn()
    assert writer.wants(one.key)
    writer.learn([one.key], [])
    assert not writer.wants(one.key)


def test_what_is_known_is_bounded(client: CacheClient) -> None:
    writer = BlockWriter(client, FORM)
    keys = [BlockKey(number.to_bytes(32, "big")) for number in range(MAX_KNOWN + 1)]
    writer.learn(keys, [])
    assert writer.wants(keys[0])
    assert not writer.wants(keys[1])
    assert not writer.wants(keys[-1])
    assert writer.close(DEADLINE_S)


def test_after_a_refusal_nothing_is_taken_until_the_service_is_another(house: CacheHouse, client: CacheClient) -> None:
    client.on_roster(house.roster("dead"))
    writer = BlockWriter(client, FORM)
    assert writer.has_room(BLOCK)
    writer.put(pending(1))
    until(lambda: writer.dropped == 1, "the refusal")
    assert not writer.has_room(BLOCK)
    assert writer.wants(pending(1).key)
    writer.unlearn()
    assert writer.has_room(BLOCK)
    assert writer.close(DEADLINE_S)


def test_a_disk_that_takes_no_more_drops_blocks_and_switches_the_tier_off(
    house: CacheHouse, client: CacheClient
) -> None:
    writer = subprocess.run(
        [sys.executable, "-m", "tests.workers.limited_writer", house.config.cache_endpoint, "1", "100000", "3"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert writer.stdout.split() == ["0", "3"]
    until(lambda: _detail(client) == f"off: [Errno {errno.EFBIG}] File too large", "the tier to be off")
    assert list(Path(house.config.cache_folder).glob("tmp/*")) == []


def _detail(client: CacheClient) -> str:
    stats = client.stats()
    assert stats is not None
    return stats.detail


def test_a_full_queue_is_told_once_until_it_has_been_empty(
    client: CacheClient, caplog: pytest.LogCaptureFixture
) -> None:
    writer = BlockWriter(client, FORM, max_bytes=2 * PAYLOAD_BYTES)
    assert writer.has_room(BLOCK, aside=PAYLOAD_BYTES)
    for _ in range(3):
        assert not writer.has_room(BLOCK, aside=PAYLOAD_BYTES + 1)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["block-queue-full"]
    writer.put(pending(1))
    until(lambda: writer.stored == 1, "the write")
    assert not writer.has_room(BLOCK, aside=2 * PAYLOAD_BYTES)
    assert len(caplog.records) == 2
    assert writer.close(DEADLINE_S)

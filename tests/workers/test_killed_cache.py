"""`kill -9` of the writer, of the cache service, or of both, at any moment of writing: only whole files outlast it."""

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pomona.cache.block import Block
from pomona.cache.client import CacheClient, Lease
from pomona.cache.messages import CacheStats
from tests.cache.house import DEADLINE_S, CacheHouse, CacheProcess, until, worker_status
from tests.workers.linked_writer import CHAIN, NAME, content, key, parent

QUOTA = 3 << 20
"""About a dozen files."""
VICTIMS = ("writer", "service", "both")


def started(house: CacheHouse) -> CacheProcess:
    """The service anew; its writer has the same incarnation."""
    names = ("worker:reader", "worker:verifier")
    house.workers = (worker_status(NAME, house.incarnation + 1), *(worker_status(name, 1) for name in names))
    service = CacheProcess(house)
    house.send(house.roster())
    return service


class Round:
    """A writer in a process of its own, and one who reads meanwhile."""

    def __init__(self, folder: Path, house: CacheHouse, service: CacheProcess, number: int, rng: random.Random) -> None:
        self.folder = folder
        self.house = house
        self.service = service
        self.rng = rng
        own = house.incarnation
        endpoint = house.config.cache_endpoint
        self.writer = subprocess.Popen(
            [sys.executable, "-m", "tests.workers.linked_writer", endpoint, str(own), str(own), str(number)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def play(self, victim: str) -> Lease:
        """Kill `victim` at a random moment of writing, and then whatever still lives; what was leased until then."""
        with self.house.client("worker:reader", timeout_s=DEADLINE_S) as reader:
            number = self._hear(self.rng.randint(1, 12))
            first = number - number % CHAIN
            lease = reader.lookup([key(one) for one in range(first or 1, first + CHAIN)])
            assert lease is not None
            self._hear(self.rng.randint(0, 2))
            threading.Event().wait(self.rng.uniform(0, 0.004))  # the random moment
            if victim != "writer":
                self.service.kill()
            self.writer.kill()
            self.writer.communicate(timeout=DEADLINE_S)
            if victim == "writer":
                self._outlives_its_writer(reader)
                self.service.kill()
        return lease

    def _hear(self, commits: int) -> int:
        """The last of so many numbers."""
        assert self.writer.stdout is not None
        line = "0"
        for _ in range(commits):
            line = self.writer.stdout.readline()
        return int(line)

    def _outlives_its_writer(self, reader: CacheClient) -> None:
        """The service hears of the death, and takes back what the dead had reserved."""
        self.house.workers = (worker_status(NAME, self.house.incarnation, "dead"), *self.house.workers[1:])
        self.house.send(self.house.roster())
        until(lambda: stats(reader).reserved_bytes == 0, "the end of the dead writer's reservation")
        assert list(self.folder.glob("tmp/*")) == []


def stats(client: CacheClient) -> CacheStats:
    answer = client.stats()
    assert answer is not None
    return answer


def blocks_in(folder: Path) -> dict[int, Block]:
    """What lies in the folder, by number, read past the service."""
    found = [(path, Block.parse(path.name)) for path in folder.glob("blocks/*/*")]
    assert all(block is not None and path.stat().st_size == block.size for path, block in found)
    return {int.from_bytes(block.key, "little"): block for _, block in found if block is not None}


def verify(folder: Path, house: CacheHouse, before: dict[int, Block], lease: Lease) -> None:
    """Read back everything that lay in the folder when the service was started."""
    leased = {int.from_bytes(block.key, "little") for block in lease.blocks}
    assert leased <= before.keys(), "what somebody reads is not evicted, nor lost with the service"
    with house.client("worker:verifier", timeout_s=DEADLINE_S) as reader:
        after = stats(reader)
        assert (after.blocks, after.quarantined_bytes, after.reserved_bytes) == (len(before), 0, 0)
        assert after.bytes == sum(block.size for block in before.values()) <= QUOTA
        assert after.enabled
        for number in before:
            ask = [key(number)]
            found = reader.lookup(ask)
            assert found is not None
            (block,) = found.blocks
            header, payload = content(number)
            assert Path(block.path).read_bytes() == header + payload
            assert before[number].parent == parent(number)
            reader.release(found)
    for left in ("tmp", "quarantine"):
        assert list((folder / left).iterdir()) == []
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != "lock") <= QUOTA


def kill_and_recover(folder: Path, rounds: int) -> int:
    """How many rounds left a file half-written, or whole and not yet named."""
    rng, number, halves = random.Random(rounds), 1, 0
    house = CacheHouse(folder, max_bytes=QUOTA)
    service = started(house)
    try:
        for count in range(rounds):
            lease = Round(folder, house, service, number, rng).play(VICTIMS[count % len(VICTIMS)])
            halves += any((folder / "tmp").iterdir())
            before = blocks_in(folder)
            service = started(house)
            verify(folder, house, before, lease)
            number = max(before, default=0) + 1
    finally:
        service.kill()
        house.close()
    return halves


def test_a_killed_writer_or_service_leaves_whole_files_only(tmp_path: Path) -> None:
    kill_and_recover(tmp_path / "kv", 2 * len(VICTIMS))


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_writers_and_services_killed_many_times_leave_whole_files_only(tmp_path: Path) -> None:
    assert kill_and_recover(tmp_path / "kv", 500) > 25

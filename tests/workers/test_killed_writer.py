import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pomona.cache.block import Block
from pomona.cache.disk import BlockFolder
from pomona.workers.block_file import BlockError
from tests.workers.endless_writer import BLOCK, FORM, QUOTA, block


def killed_at_a_random_moment(folder: Path, number: int, rng: random.Random) -> int:
    """The last block that a writer, starting at `number`, had committed when it was killed."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.workers.endless_writer", str(folder), str(number)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert writer.stdout is not None
        for _ in range(rng.randint(1, 12)):
            number = int(writer.stdout.readline())
        threading.Event().wait(rng.uniform(0, 0.01))  # the random moment
    finally:
        writer.kill()
        rest, _ = writer.communicate(timeout=60)
    return int(rest.split()[-1]) if rest.endswith("\n") else number


def verified(folder: Path) -> set[int]:
    """The numbers of the blocks that a start-up scan finds; each is read and compared."""
    disk = BlockFolder(folder, QUOTA)
    found: tuple[Block, ...] = disk.open()
    disk.close()
    assert list((folder / "tmp").iterdir()) == []
    assert list((folder / "quarantine").iterdir()) == []
    assert sum(one.size for one in found) <= QUOTA
    numbers = set()
    for one in found:
        number = int.from_bytes(one.key, "little")
        key, _, payload = block(number)
        assert FORM.read(disk.path(one), key, one.parent, BLOCK) == payload
        numbers.add(number)
    return numbers


def kill_and_recover(folder: Path, rounds: int) -> None:
    rng = random.Random(rounds)
    number = 1
    for _ in range(rounds):
        last = killed_at_a_random_moment(folder, number, rng)
        numbers = verified(folder)
        assert last in numbers, "what was committed last has outlived its writer"
        number = max(numbers) + 1


def test_a_killed_writer_leaves_whole_blocks_only(tmp_path: Path) -> None:
    kill_and_recover(tmp_path / "kv", 20)


@pytest.mark.campaign
def test_a_writer_killed_many_times_leaves_whole_blocks_only(tmp_path: Path) -> None:
    kill_and_recover(tmp_path / "kv", 400)


def test_a_file_cut_short_by_a_power_loss_is_put_aside_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    killed_at_a_random_moment(folder, 1, random.Random(5))
    disk = BlockFolder(folder, QUOTA)
    first, *others = disk.open()
    disk.close()
    path = disk.path(first)
    key, _, payload = block(int.from_bytes(first.key, "little"))
    path.write_bytes(path.read_bytes()[: -len(payload) // 2] + bytes(len(payload) // 2))
    with pytest.raises(BlockError, match="checksum"):
        FORM.read(path, key, first.parent, BLOCK)
    path.write_bytes(path.read_bytes()[:-1])
    again = BlockFolder(folder, QUOTA)
    assert set(again.open()) == set(others)
    again.close()
    assert [held.name for held in (folder / "quarantine").iterdir()] == [path.name]

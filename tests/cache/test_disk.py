import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pomona.cache.block import Block
from pomona.cache.disk import BlockFolder, WrongSize
from pomona.cache.lock import FolderBusy
from pomona.cache.messages import BlockKey
from pomona.cache.quarantine import MAX_FILES, bound

ROOT = BlockKey(b"r" * 32)
FOREVER = float("inf")


def block(number: int, size: int = 10) -> Block:
    return Block(BlockKey(bytes([number]) * 32), ROOT, size)


def put(folder: BlockFolder, one: Block) -> Path:
    path = folder.temporary(one, "1")
    path.write_bytes(bytes(one.size))
    folder.publish(path, one)
    return folder.path(one)


@pytest.fixture
def folder(tmp_path: Path) -> BlockFolder:
    folder = BlockFolder(tmp_path / "kv", 100)
    assert folder.open() == ()
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_all_folders_are_private(folder: BlockFolder, tmp_path: Path) -> None:
    path = put(folder, block(1))
    for private in (tmp_path / "kv", path.parent, path.parent.parent, tmp_path / "kv/tmp", tmp_path / "kv/quarantine"):
        assert mode(private) == 0o700


def test_a_folder_with_other_things_in_it_keeps_its_mode_and_its_things(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    tmp_path.chmod(0o755)
    BlockFolder(tmp_path, 100).open()
    assert mode(tmp_path) == 0o755
    assert mode(tmp_path / "blocks") == 0o700
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_a_scan_finds_what_was_published_least_recent_first(folder: BlockFolder, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        os.utime(put(folder, block(number)), (number, number))
    folder.touch(block(1))
    folder.close()
    assert BlockFolder(tmp_path / "kv", 100).open() == (block(2), block(3), block(1))


def test_a_short_or_missing_temporary_file_is_not_published(folder: BlockFolder) -> None:
    path = folder.temporary(block(1), "1")
    with pytest.raises(FileNotFoundError):
        folder.publish(path, block(1))
    path.write_bytes(bytes(9))
    with pytest.raises(WrongSize, match="9 bytes were written of a block of 10"):
        folder.publish(path, block(1))
    assert not folder.path(block(1)).exists()


def test_a_scan_puts_aside_what_is_no_block(folder: BlockFolder, tmp_path: Path) -> None:
    good = put(folder, block(1))
    short = put(folder, block(2))
    short.write_bytes(bytes(9))
    strange = good.parent / "notes.txt"
    strange.write_text("?")
    astray = good.parent / block(3).file_name
    astray.write_bytes(bytes(10))
    link = good.parent / block(4).file_name
    link.symlink_to(good)
    stray = tmp_path / "kv/blocks/stray"
    stray.write_text("?")
    nested = good.parent / "nested"
    nested.mkdir()
    folder.close()

    again = BlockFolder(tmp_path / "kv", 1000)
    assert again.open() == (block(1),)
    held = {path.name for path in (tmp_path / "kv/quarantine").iterdir()}
    assert held == {short.name, strange.name, astray.name, link.name, stray.name}
    assert good.exists()
    assert not nested.exists()


def test_orphaned_temporary_files_are_swept_at_the_start(folder: BlockFolder, tmp_path: Path) -> None:
    orphan = folder.temporary(block(1), "1")
    orphan.write_bytes(b"half")
    (orphan.parent / "folder").mkdir()
    folder.close()
    BlockFolder(tmp_path / "kv", 100).open()
    assert list(orphan.parent.iterdir()) == []


def test_a_sweep_spares_what_is_kept_and_what_is_new(folder: BlockFolder) -> None:
    kept, new, old = (folder.temporary(block(n), "1") for n in (1, 2, 3))
    for path, written in ((kept, 10), (new, 100), (old, 10)):
        path.write_bytes(b"half")
        os.utime(path, (written, written))
    assert folder.sweep(frozenset({kept}), 50) == 1
    assert kept.exists()
    assert new.exists()
    assert not old.exists()


def test_quarantine_is_bounded_by_bytes_and_by_files(folder: BlockFolder, tmp_path: Path) -> None:
    for number in range(30):
        put(folder, block(number, size=20))
        folder.quarantine(block(number, size=20))
    held = list((tmp_path / "kv/quarantine").iterdir())
    assert {path.name for path in held} == {block(n, size=20).file_name for n in range(25, 30)}
    assert folder.quarantined_bytes == 100
    for number in range(30):
        put(folder, block(number, size=1))
        folder.quarantine(block(number, size=1))
    assert len(list((tmp_path / "kv/quarantine").iterdir())) == MAX_FILES
    assert folder.quarantined_bytes == MAX_FILES
    folder.close()
    again = BlockFolder(tmp_path / "kv", 5)
    again.open()
    assert again.quarantined_bytes == 5


def test_quarantine_takes_a_small_share_of_the_quota() -> None:
    assert bound(3200) == 100
    assert bound(1 << 50) == 256 * 1024**2


def test_quarantine_can_be_emptied(folder: BlockFolder, tmp_path: Path) -> None:
    put(folder, block(1))
    folder.quarantine(block(1))
    folder.empty_quarantine()
    assert folder.quarantined_bytes == 0
    assert list((tmp_path / "kv/quarantine").iterdir()) == []


def test_the_same_block_is_counted_once_in_quarantine(folder: BlockFolder) -> None:
    for _ in range(2):
        put(folder, block(1))
        folder.quarantine(block(1))
    assert folder.quarantined_bytes == 10


def test_a_vanished_file_is_removed_and_put_aside_without_a_word(folder: BlockFolder) -> None:
    folder.remove(block(1))
    folder.quarantine(block(1))
    folder.discard(folder.temporary(block(1), "1"))
    with pytest.raises(FileNotFoundError):
        folder.touch(block(1))
    assert folder.quarantined_bytes == 0


def test_a_probe_leaves_nothing_behind(folder: BlockFolder, tmp_path: Path) -> None:
    folder.probe(3 << 20)
    assert list((tmp_path / "kv/tmp").iterdir()) == []
    assert folder.free_bytes() > 0


def test_a_probe_meets_the_limit_that_a_write_would_meet(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from pomona.cache.disk import BlockFolder;"
        "f = BlockFolder(Path(sys.argv[1]), 1); f.open();"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); f.probe(900)\n"
        "try: f.probe(1001)\n"
        "except OSError as error: sys.exit(error.errno)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path / "kv")], timeout=60, check=False)
    assert result.returncode == errno.EFBIG
    assert list((tmp_path / "kv/tmp").iterdir()) == []


def test_a_folder_in_use_names_its_user_and_is_free_again_afterwards(folder: BlockFolder, tmp_path: Path) -> None:
    other = BlockFolder(tmp_path / "kv", 100)
    with pytest.raises(FolderBusy, match=f"in use by process {os.getpid()}; .*cache.folder"):
        other.open()
    folder.close()
    assert other.open() == ()
    other.close()
    other.close()

import os
from pathlib import Path

import pytest

from pomona.cache.disk import BlockFolder
from pomona.cache.shelf import look, open_block
from tests.cache.block_files import ROOT, block_bytes, key, put, put_chain


@pytest.fixture
def folder(tmp_path: Path) -> BlockFolder:
    folder = BlockFolder(tmp_path / "kv", 10_000)
    folder.open()
    return folder


def test_a_folder_is_read_beside_the_server_that_holds_it(folder: BlockFolder, tmp_path: Path) -> None:
    paths = put_chain(folder, 1, 2)
    shelf = look(tmp_path / "kv")
    assert {file.path for file in shelf.files.values()} == set(paths)
    assert shelf.bytes == sum(path.stat().st_size for path in paths)
    assert shelf.free_bytes > 0
    assert shelf.strangers == ()


def test_a_block_was_used_when_one_behind_it_was(folder: BlockFolder, tmp_path: Path) -> None:
    for path, used in zip(put_chain(folder, 1, 2, 3), (10, 30, 20), strict=True):
        os.utime(path, (used, used))
    os.utime(put(folder, key(9), ROOT), (25, 25))
    shelf = look(tmp_path / "kv")
    assert [(file.block.key, file.used) for file in shelf.files.values()] == [
        (key(2), 30),
        (key(1), 30),
        (key(9), 25),
        (key(3), 20),
    ]
    assert [file.block.key for file in shelf.lineage(key(3))] == [key(1), key(2), key(3)]
    assert [file.block.key for file in shelf.heads_first()] == [key(1), key(2), key(9), key(3)]


def test_what_is_no_block_is_a_stranger_and_stays(folder: BlockFolder, tmp_path: Path) -> None:
    (good,) = put_chain(folder, 1)
    short = put(folder, key(2), ROOT)
    short.write_bytes(b"short")
    link = good.parent / f"{key(1).hex()}-{key(3).hex()}-7.safetensors"
    link.symlink_to(good)
    stray = tmp_path / "kv/blocks/stray"
    stray.write_text("?")
    shelf = look(tmp_path / "kv")
    assert list(shelf.files) == [key(1)]
    assert set(shelf.strangers) == {short, link, stray}
    assert all(path.is_symlink() or path.exists() for path in shelf.strangers)


def test_quarantine_is_counted(folder: BlockFolder, tmp_path: Path) -> None:
    data = block_bytes(key(1), ROOT)
    put(folder, key(1), ROOT, data)
    folder.quarantine(next(iter(look(tmp_path / "kv").files.values())).block)
    shelf = look(tmp_path / "kv")
    assert (shelf.quarantined, shelf.quarantined_bytes, len(shelf.files)) == (1, len(data), 0)


def test_a_file_that_vanished_is_none_and_a_link_is_not_followed(folder: BlockFolder, tmp_path: Path) -> None:
    first, second = put_chain(folder, 1, 2)
    files = look(tmp_path / "kv").files
    first.unlink()
    assert open_block(files[key(1)]) is None
    second.rename(tmp_path / "elsewhere")
    second.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=second.name):
        open_block(files[key(2)])


def test_names_forged_into_a_ring_end(folder: BlockFolder, tmp_path: Path) -> None:
    put(folder, key(1), key(2))
    put(folder, key(2), key(1))
    shelf = look(tmp_path / "kv")
    assert len(shelf.files) == len(shelf.heads_first()) == len(shelf.lineage(key(1))) == 2


def test_keys_are_found_by_their_first_digits(folder: BlockFolder, tmp_path: Path) -> None:
    put_chain(folder, 0x1A, 0x1B)
    shelf = look(tmp_path / "kv")
    assert [file.block.key for file in shelf.find("1A1a")] == [key(0x1A)]
    assert len(shelf.find("1")) == 2
    assert shelf.find("2") == ()


def test_no_folder_is_an_error_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        look(tmp_path / "none")
    assert look(tmp_path).files == {}

import io
import itertools
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pomona.cache.archive import NoArchive, Outcome, export_blocks, import_blocks
from pomona.cache.disk import BlockFolder
from pomona.cache.messages import BlockKey
from pomona.cache.service import CacheService
from pomona.cache.shelf import look
from pomona.config import CacheConfig
from tests.cache.block_files import ROOT, block_bytes, block_of, key, put, put_chain


def done(size: int) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> BlockFolder:
    folder = BlockFolder(tmp_path / "kv", 10_000)
    folder.open()
    return folder


class Target:
    """Another machine's folder."""

    def __init__(self, root: Path, max_bytes: int = 1 << 20) -> None:
        self.root = root
        files = BlockFolder(root, 1000)
        self.service = CacheService(files, CacheConfig(max_bytes=max_bytes, min_free_bytes=0), 0)
        self.service.open(0.0)

    def take(self, archive: Path, progress: Callable[[int], None] = done) -> list[Outcome]:
        clock = itertools.count()
        return list(import_blocks(archive, self.service, progress, lambda: float(next(clock))))

    @property
    def keys(self) -> set[BlockKey]:
        return set(look(self.root).files)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path / "other")


def packed(folder: BlockFolder, tmp_path: Path) -> Path:
    archive = tmp_path / "prompt.tar"
    assert list(export_blocks(look(tmp_path / "kv").heads_first(), archive, done))
    return archive


def archive_of(tmp_path: Path, *members: tuple[tarfile.TarInfo | str, bytes]) -> Path:
    path = tmp_path / "foreign.tar"
    with tarfile.open(path, "w") as archive:
        for member, data in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def name_of(number: int, data: bytes, parent: BlockKey = ROOT) -> str:
    return f"blocks/{block_of(key(number), parent, data).file_name}"


def test_a_chain_arrives_to_the_bit(folder: BlockFolder, tmp_path: Path, target: Target) -> None:
    sources = put_chain(folder, 1, 2, 3)
    archive = packed(folder, tmp_path)
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    steps: list[int] = []
    assert [outcome.state for outcome in target.take(archive, steps.append)] == ["done"] * 3
    assert sum(steps) == sum(path.stat().st_size for path in sources)
    landed = look(tmp_path / "other").files
    for source in sources:
        file = next(file for file in landed.values() if file.path.name == source.name)
        assert file.path.read_bytes() == source.read_bytes()
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert list((tmp_path / "other/tmp").iterdir()) == []
    assert [outcome.state for outcome in target.take(archive)] == ["present"] * 3


def test_an_export_leaves_out_what_is_damaged_or_gone(folder: BlockFolder, tmp_path: Path, target: Target) -> None:
    first, second, _ = put_chain(folder, 1, 2, 3)
    second.write_bytes(second.read_bytes()[:-1] + b"?")
    files = look(tmp_path / "kv").heads_first()
    first.unlink()
    archive = tmp_path / "prompt.tar"
    outcomes = list(export_blocks(files, archive, done))
    assert [outcome.state for outcome in outcomes] == ["gone", "bad", "done"]
    assert "checksum" in outcomes[1].reason
    target.take(archive)
    assert target.keys == {key(3)}


def test_an_export_never_replaces_a_file_nor_leaves_half_of_one(folder: BlockFolder, tmp_path: Path) -> None:
    put_chain(folder, 1, 2)
    files = look(tmp_path / "kv").heads_first()
    archive = tmp_path / "prompt.tar"
    half = export_blocks(files, archive, done)
    next(half)
    half.close()  # type: ignore[attr-defined]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kv"]
    archive.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        list(export_blocks(files, archive, done))
    assert archive.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "name",
    [
        "../../blocks/{}",
        "/blocks/{}",
        "blocks/../{}",
        "blocks/ab/{}",
        "{}",
        "blocks/x{}",
        "blocks/lock",
        "blocks/\x1b[31m{}",
    ],
)
def test_names_that_are_no_blocks_are_foreign(tmp_path: Path, target: Target, name: str) -> None:
    data = block_bytes(key(1), ROOT)
    bare = name_of(1, data).removeprefix("blocks/")
    (outcome,) = target.take(archive_of(tmp_path, (name.format(bare), data)))
    assert outcome.state == "foreign"
    assert target.keys == set()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign.tar", "other"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_what_is_no_plain_file_is_foreign(tmp_path: Path, target: Target, kind: bytes) -> None:
    data = block_bytes(key(1), ROOT)
    member = tarfile.TarInfo(name_of(1, data))
    member.type, member.linkname = kind, "/etc/hosts"
    path = tmp_path / "links.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(member)
    (outcome,) = target.take(path)
    assert outcome.state == "foreign"
    assert target.keys == set()


def test_a_size_that_is_not_the_names_is_foreign(tmp_path: Path, target: Target) -> None:
    data = block_bytes(key(1), ROOT)
    (outcome,) = target.take(archive_of(tmp_path, (name_of(1, data), data + b"x")))
    assert outcome.state == "foreign"


def test_a_damaged_block_is_refused_before_anything_makes_room_for_it(tmp_path: Path) -> None:
    good, bad = block_bytes(key(1), ROOT), bytearray(block_bytes(key(2), ROOT))
    bad[-1] ^= 1
    target = Target(tmp_path / "other", max_bytes=len(good) + 10)
    outcomes = target.take(archive_of(tmp_path, (name_of(1, good), good), (name_of(2, bytes(bad)), bytes(bad))))
    assert [outcome.state for outcome in outcomes] == ["done", "bad"]
    assert target.keys == {key(1)}


def test_a_block_under_the_name_of_another_is_bad(tmp_path: Path, target: Target) -> None:
    data = block_bytes(key(1), ROOT)
    (outcome,) = target.take(archive_of(tmp_path, (name_of(2, data), data)))
    assert (outcome.state, "key is" in outcome.reason) == ("bad", True)
    assert target.keys == set()


def test_the_quota_holds_and_what_was_used_for_longest_makes_room(tmp_path: Path) -> None:
    first = block_bytes(key(1), ROOT)
    target = Target(tmp_path / "other", max_bytes=2 * len(first) + 10)
    chained = [(name_of(n, data), data) for n in (1, 2, 3) for data in (block_bytes(key(n), ROOT),)]
    assert [outcome.state for outcome in target.take(archive_of(tmp_path, *chained))] == ["done"] * 3
    assert target.keys == {key(2), key(3)}
    assert look(tmp_path / "other").bytes <= 2 * len(first) + 10


def test_a_block_larger_than_the_quota_is_refused_with_the_numbers(tmp_path: Path) -> None:
    data = block_bytes(key(1), ROOT)
    target = Target(tmp_path / "other", max_bytes=len(data) - 1)
    (outcome,) = target.take(archive_of(tmp_path, (name_of(1, data), data)))
    assert outcome == Outcome(
        name_of(1, data).removeprefix("blocks/"),
        "refused",
        f"a block of {len(data)} bytes does not fit a quota of {len(data) - 1}",
    )


@pytest.mark.parametrize("cut", [0, 100, 700])
def test_what_is_no_whole_archive_is_named(folder: BlockFolder, tmp_path: Path, target: Target, cut: int) -> None:
    put(folder, key(1), ROOT)
    broken = tmp_path / "broken.tar"
    broken.write_bytes(packed(folder, tmp_path).read_bytes()[:cut])
    with pytest.raises(NoArchive, match=r"broken.tar is no archive of `pomona cache export`"):
        target.take(broken)
    assert target.keys == set()
    assert list((tmp_path / "other/tmp").iterdir()) == []

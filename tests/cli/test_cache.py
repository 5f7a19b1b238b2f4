"""`pomona cache` on folders of blocks made on the spot, beside a server that holds the folder and without one."""

import io
import json
import os
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pomona.__main__ import main
from pomona.cache.disk import BlockFolder
from pomona.cache.shelf import look
from pomona.cli.cache.show import ago
from tests.cache.block_files import ROOT, TOKENS, block_bytes, key, put, put_chain

OTHER_ROOT = key(0xDD)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POMONA_HOME", str(tmp_path))
    for name in ("POMONA_API_KEY", "POMONA_API_KEYS", "POMONA_HOST", "POMONA_PORT", "POMONA_CONFIG", "POMONA_LOG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def server(home: Path) -> Iterator[BlockFolder]:
    """Holds the folder's lock until its `close`."""
    folder = BlockFolder(home / "cache", 1 << 20)
    folder.open()
    yield folder
    folder.close()


@pytest.fixture
def paths(server: BlockFolder) -> list[Path]:
    """Three blocks in two chains, which share none."""
    chain = put_chain(server, 1, 2)
    other = put_chain(server, 0x31, root=OTHER_ROOT)
    for path, age in zip((*chain, *other), (100, 7300, 10), strict=True):
        os.utime(path, (time.time() - age,) * 2)
    return [*chain, *other]


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


class Said:
    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        self.code = main(["cache", *arguments])
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def test_stats_count_by_root_beside_a_server(home: Path, paths: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "stats", "--json")
    facts = said.json
    size = paths[0].stat().st_size
    assert said.code == 0
    assert (facts["folder"], facts["blocks"]) == (str(home / "cache"), 3)
    assert facts["bytes"] == sum(path.stat().st_size for path in paths)
    assert facts["max_bytes"] == 20 * 1024**3
    assert facts["free_bytes"] > 0
    newest, older = facts["roots"]
    assert (newest["key"], newest["blocks"], newest["chains"]) == (OTHER_ROOT.hex(), 1, 1)
    assert (older["key"], older["blocks"], older["chains"]) == (ROOT.hex(), 2, 1)
    assert older["tokens"] == 2 * TOKENS
    assert (older["dtypes"], older["bytes"]) == (["F32"], 2 * size)
    shown = Said(capsys, "stats").out
    assert "blocks      3" in shown
    assert ROOT.hex()[:12] in shown
    assert "of the quota of 21.5 GB" in shown


def test_stats_count_what_is_no_block_and_what_is_in_quarantine(
    server: BlockFolder, paths: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    server.quarantine(next(file.block for file in look(paths[0].parents[2]).files.values()))
    (paths[0].parent / "notes.txt").write_text("?")
    facts = Said(capsys, "stats", "--json").json
    assert (facts["blocks"], facts["quarantined"], facts["strangers"]) == (2, 1, 1)
    assert "1 files; see: pomona cache verify --dry-run" in Said(capsys, "stats").out


def test_blocks_are_listed_last_used_first(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    blocks = Said(capsys, "list", "--json").json["blocks"]
    assert [block["key"] for block in blocks] == [key(0x31).hex(), key(1).hex(), key(2).hex()]
    assert [block["end"] for block in blocks] == [TOKENS, TOKENS, 2 * TOKENS]
    assert [block["root"] for block in blocks] == [OTHER_ROOT.hex(), ROOT.hex(), ROOT.hex()]
    assert blocks[2]["parent"] == key(1).hex()
    lines = Said(capsys, "list").out.splitlines()
    rows = [line.split() for line in lines if line.split() and line.split()[0] in (key(1).hex()[:12], "0202" * 3)]
    assert rows[0][:2] == [key(1).hex()[:12], ROOT.hex()[:12]]
    assert rows[0][-2:] == ["1", "min"]
    assert rows[1][-2:] == ["2", "h"]


def test_a_block_with_a_damaged_header_is_listed_without_its_tokens(
    paths: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(paths[2].read_bytes())
    data[9] ^= 0xFF
    paths[2].write_bytes(data)
    listed = {block["key"]: block for block in Said(capsys, "list", "--json").json["blocks"]}
    assert len(listed) == 3
    assert (listed[key(0x31).hex()]["tokens"], listed[key(0x31).hex()]["end"]) == (None, None)
    assert "?" in Said(capsys, "list").out


def test_an_empty_folder_says_where_it_is(home: Path, server: BlockFolder, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "list")
    assert (said.code, said.out) == (0, f"no blocks are stored in {home / 'cache'}\n")
    assert Said(capsys, "export", str(home / "x.tar")).err == (
        f"pomona: no blocks are stored in {home / 'cache'}; there is nothing to export\n"
    )


@pytest.mark.parametrize("command", ["stats", "list", "verify", "clear"])
def test_a_folder_that_is_none_is_named(home: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    said = Said(capsys, command)
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert said.err.startswith(f"pomona: there is no cache folder {home / 'cache'}; `pomona serve` makes it")


@pytest.mark.parametrize("command", [["verify"], ["clear", "--yes"], ["import", "{}/x.tar"]])
def test_a_folder_of_something_else_is_left_alone(
    home: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    mine = home / "mine"
    (mine / "blocks").mkdir(parents=True)
    (mine / "blocks" / "house.txt").write_text("of bricks")
    (home / "x.tar").write_bytes(b"")
    said = Said(capsys, *(part.format(home) for part in command), "--folder", str(mine))
    assert said.code == 1
    assert "is no cache folder, it has no file `lock`" in said.err
    assert (mine / "blocks" / "house.txt").read_text() == "of bricks"
    assert [path.name for path in mine.iterdir()] == ["blocks"]


def test_the_folder_is_the_one_of_the_configuration(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = BlockFolder(home / "elsewhere/kv", 1000)
    folder.open()
    put_chain(folder, 1)
    config = home / "mine.toml"
    config.write_text('[cache]\nfolder = "elsewhere/kv"\nmax_bytes = 1000000\n', encoding="utf-8")
    facts = Said(capsys, "stats", "--json", "--config", str(config)).json
    assert (facts["folder"], facts["blocks"], facts["max_bytes"]) == (str(home / "elsewhere/kv"), 1, 1000000)
    named = Said(capsys, "stats", "--json", "--folder", str(home / "elsewhere/kv")).json
    assert named["blocks"] == 1
    folder.close()


def test_whole_blocks_are_verified(server: BlockFolder, paths: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    server.close()
    said = Said(capsys, "verify")
    assert said.code == 0
    assert said.out.startswith("3 blocks, ")
    assert said.out.endswith("all of them are whole\n")
    assert said.err == "verifying\n"


def test_bad_blocks_go_to_quarantine(
    home: Path, server: BlockFolder, paths: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(paths[1])
    stranger = paths[0].parent / "notes.txt"
    stranger.write_text("?")
    server.close()
    said = Said(capsys, "verify", "--json")
    assert said.code == 1
    assert said.json["checked"] == 3
    assert [bad["name"] for bad in said.json["bad"]] == ["notes.txt", paths[1].name]
    assert "checksum" in said.json["bad"][1]["reason"]
    held = {path.name for path in (home / "cache/quarantine").iterdir()}
    assert held == {"notes.txt", paths[1].name}
    assert Said(capsys, "verify").code == 0


def test_a_dry_run_moves_nothing_and_works_beside_a_server(
    paths: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(paths[1])
    said = Said(capsys, "verify", "--dry-run")
    assert said.code == 1
    assert said.out.endswith("1 bad, left where they are\n")
    assert f"pomona: {paths[1].name}: the checksum does not match the payload\n" in said.err
    assert paths[1].exists()


@pytest.mark.parametrize("command", [["verify"], ["clear", "--yes"], ["import", "{}/x.tar"]])
def test_what_changes_the_folder_waits_for_the_servers_end(
    home: Path, paths: list[Path], capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    Said(capsys, "export", str(home / "x.tar"))
    said = Said(capsys, *(part.format(home) for part in command))
    assert said.code == 1
    complaint = said.err.splitlines()[-1]
    assert complaint == (
        f"pomona: the cache folder {home / 'cache'} is in use by process {os.getpid()}; "
        "stop that server or set another cache.folder"
    )
    assert all(path.exists() for path in paths)


def test_clear_deletes_blocks_and_quarantine(
    home: Path, server: BlockFolder, paths: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    server.quarantine(next(iter(look(home / "cache").files.values())).block)
    server.close()
    said = Said(capsys, "clear", "--yes")
    assert said.code == 0
    assert said.out.startswith("deleted 2 stored blocks, ")
    shelf = look(home / "cache")
    assert (len(shelf.files), shelf.quarantined) == (0, 0)


@pytest.mark.parametrize(("answer", "left"), [("n\n", 3), ("", 3), ("y\n", 0)])
def test_clear_asks_first(
    home: Path,
    server: BlockFolder,
    paths: list[Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    left: int,
) -> None:
    server.close()
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    said = Said(capsys, "clear")
    assert said.code == (130 if left else 0)
    assert "delete 3 stored blocks, " in said.err
    assert len(look(home / "cache").files) == left


def test_a_prompt_is_carried_to_another_folder(
    home: Path, paths: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    archive, other = home / "prompt.tar", home / "other"
    said = Said(capsys, "export", str(archive), "--key", key(2).hex()[:12])
    assert said.code == 0
    assert said.out == f"2 blocks written: {archive}\n"
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    said = Said(capsys, "import", str(archive), "--folder", str(other))
    assert (said.code, said.out) == (0, f"2 blocks stored: {other}\n")
    assert set(look(other).files) == {key(1), key(2)}
    again = Said(capsys, "import", str(archive), "--folder", str(other), "--json")
    assert (again.code, again.json["done"], again.json["present"]) == (0, 0, 2)
    assert Said(capsys, "export", str(archive)).err.splitlines()[-1] == (
        f"pomona: {archive} exists already; move it away or choose another name"
    )


def test_without_a_key_all_blocks_are_exported_heads_first(
    home: Path, paths: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert Said(capsys, "export", str(home / "all.tar")).code == 0
    with tarfile.open(home / "all.tar") as archive:
        names = [name.removeprefix("blocks/") for name in archive.getnames()]
    assert sorted(names) == sorted(path.name for path in paths)
    assert names.index(paths[0].name) < names.index(paths[1].name)


@pytest.mark.parametrize(
    ("digits", "said"),
    [("ff", "no stored block has a key that begins with 'ff'"), ("0", "2 keys begin with '0'; give more digits")],
)
def test_a_key_that_names_no_block_or_several_is_refused(
    home: Path, paths: list[Path], capsys: pytest.CaptureFixture[str], digits: str, said: str
) -> None:
    answer = Said(capsys, "export", str(home / "x.tar"), "--key", digits)
    assert answer.code == 1
    assert said in answer.err
    assert not (home / "x.tar").exists()


def test_what_is_damaged_is_left_out_of_an_export_and_said(
    home: Path, paths: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(paths[1])
    said = Said(capsys, "export", str(home / "x.tar"))
    assert said.code == 1
    assert said.out == f"2 blocks written, 1 damaged: {home / 'x.tar'}\n"
    assert paths[1].name in said.err


def test_an_import_says_what_it_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(home / "odd.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("../\x1b[31mout"))
    said = Said(capsys, "import", str(home / "odd.tar"))
    assert said.code == 1
    assert said.out == f"0 blocks stored, 1 no blocks: {home / 'cache'}\n"
    assert "\x1b" not in said.err
    assert "not a file that is named and sized as a block" in said.err


def test_an_import_keeps_the_quota(home: Path, server: BlockFolder, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2, 3):
        put(server, key(number), ROOT)
    assert Said(capsys, "export", str(home / "x.tar")).code == 0
    size = len(block_bytes(key(1), ROOT))
    config = home / "small.toml"
    config.write_text(
        f'[cache]\nfolder = "small"\nmax_bytes = {2 * size}\nmin_free_bytes = 0\nenabled = false\n', encoding="utf-8"
    )
    assert Said(capsys, "import", str(home / "x.tar"), "--config", str(config)).code == 0
    assert look(home / "small").bytes == 2 * size


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"text", "is no archive of `pomona cache")])
def test_a_file_that_is_no_archive_is_named(
    home: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    if content is not None:
        (home / "x.tar").write_bytes(content)
    answer = Said(capsys, "import", str(home / "x.tar"))
    assert answer.code == 1
    assert said in answer.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (86400 * 3, "3 d")]
)
def test_ages_are_said_in_their_largest_unit(seconds: float, text: str) -> None:
    assert ago(seconds) == text

import os
import stat
from pathlib import Path

import pytest

from pomona.refusal import Refusal
from pomona.runtime.folder import SOCKET_PATH_BYTES, RuntimeFolder, short


def test_the_folder_is_private(tmp_path: Path) -> None:
    path = tmp_path / "home" / "run"
    with RuntimeFolder(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_an_open_folder_is_made_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with RuntimeFolder(tmp_path):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_second_server_is_refused_with_the_number_of_the_first(tmp_path: Path) -> None:
    with (
        RuntimeFolder(tmp_path),
        pytest.raises(Refusal, match=f"{tmp_path} is in use by process {os.getpid()}; stop that server"),
    ):
        RuntimeFolder(tmp_path)
    with RuntimeFolder(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refusal, match=r"file/run cannot be used .*POMONA_HOME"):
        RuntimeFolder(tmp_path / "file" / "run")


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refusal, match="belongs to somebody else or is no folder"):
        RuntimeFolder(tmp_path / "run")


def test_a_link_in_place_of_the_shared_temporary_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"pomona-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refusal, match="belongs to somebody else or is no folder"):
        RuntimeFolder(tmp_path / f"pomona-{os.getuid()}" / "12345678")


@pytest.mark.parametrize("spare", [1, 0, -1])
def test_a_path_too_long_for_a_socket_gets_a_stand_in(spare: int) -> None:
    room = SOCKET_PATH_BYTES - len("/scheduler") - spare
    folder = Path("/" + "x" * (room - 1))
    found = short(folder, Path("/tmp"))
    if spare >= 0:
        assert found == folder
    else:
        assert found.parent == Path(f"/tmp/pomona-{os.getuid()}")
        assert found == short(folder, Path("/tmp"))
        assert found != short(folder / "other", Path("/tmp"))
        assert len(os.fsencode(found / "scheduler")) <= SOCKET_PATH_BYTES


def test_the_length_counts_bytes_and_not_letters() -> None:
    assert short(Path("/" + "ä" * 60), Path("/tmp")).is_relative_to("/tmp")

import json
import struct
from pathlib import Path

import pytest

from pomona.cli.bench.contenders import clean_environment
from pomona.cli.bench.environment import weight_types
from pomona.cli.bench.folder import model_folder
from pomona.cli.bench.problem import BenchError


def weights(folder: Path, name: str, *types: str) -> None:
    header = {str(n): {"dtype": kind, "shape": [0], "data_offsets": [0, 0]} for n, kind in enumerate(types)}
    text = json.dumps(header | {"__metadata__": {"format": "mlx"}}).encode()
    (folder / name).write_bytes(struct.pack("<Q", len(text)) + text)


def test_weight_types_are_read_from_every_file(tmp_path: Path) -> None:
    weights(tmp_path, "a.safetensors", "U32", "BF16")
    weights(tmp_path, "b.safetensors", "F32", "BF16")
    assert weight_types(tmp_path) == "BF16, F32, U32"


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, struct.pack("<Q", 4) + b"{no}"])
def test_weights_that_cannot_be_read_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(BenchError, match=r"model\.safetensors: not readable as safetensors"):
        weight_types(tmp_path)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no safetensors weights there"):
        weight_types(tmp_path)


def test_the_users_own_settings_do_not_reach_the_contenders(tmp_path: Path) -> None:
    user = {"PATH": "/bin", "POMONA_HOME": "/home/x", "POMONA_API_KEYS": "k", "HF_HUB_CACHE": "/elsewhere"}
    env = clean_environment(user, tmp_path, {"LD_PRELOAD": "libfast.so"})
    assert env["PATH"] == "/bin"
    assert env["LD_PRELOAD"] == "libfast.so"
    assert Path(env["HF_HUB_CACHE"]).is_dir()
    assert Path(env["HF_HUB_CACHE"]).is_relative_to(tmp_path)
    assert not [name for name in env if name.startswith("POMONA_")]


def test_a_model_is_a_folder_or_an_id_of_the_library(tmp_path: Path) -> None:
    library, own = tmp_path / "library", tmp_path / "own"
    for folder in (library / "pear", own):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert model_folder("pear", library, report) == library / "pear"
    assert model_folder(str(own), library, report) == own
    with pytest.raises(BenchError, match="no model plum, neither as a folder nor in"):
        model_folder("plum", library, report)


def report(done: int, total: int, text: str) -> None:
    pytest.fail("nothing is fetched")

import json
import struct
from pathlib import Path

import pytest

from pomona.cli.bench.contenders import clean_environment
from pomona.cli.bench.environment import describe, notes, weight_types
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


@pytest.mark.parametrize(
    ("device", "weights", "noted"),
    [
        ("Device(cpu, 0)", "BF16, U32", True),
        ("Device(cpu, 0)", "F16", True),
        ("Device(cpu, 0)", "F32", False),
        ("Device(gpu, 0)", "BF16", False),
    ],
)
def test_weights_that_only_pomona_widens_are_noted(device: str, weights: str, noted: bool) -> None:
    assert [weights in note for note in notes(device, weights)] == [True] * noted


def test_the_description_names_the_device_and_the_weights(tmp_path: Path) -> None:
    weights(tmp_path, "model.safetensors", "F32")
    environment = describe(tmp_path, {})
    assert environment.device.startswith("Device(")
    assert (environment.model, environment.weights, environment.blas) == (tmp_path.name, "F32", None)
    assert environment.notes == ()

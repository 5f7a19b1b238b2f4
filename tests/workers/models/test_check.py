import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from pomona.workers.models.check import INDEX, architectures, check
from pomona.workers.models.error import ModelError
from tests.support.tiny_model import FAMILIES, build_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "tiny")


def shard(model: Path) -> None:
    """Splits the weights over two files with an index."""
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    names = sorted(weights)
    places = {name: f"model-0000{1 + (i > 5)}-of-00002.safetensors" for i, name in enumerate(names)}
    for place in set(places.values()):
        save_file({name: weights[name] for name in names if places[name] == place}, model / place)
    (model / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def drop(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def put(name: str, text: str) -> Callable[[Path], None]:
    return lambda model: (model / name).write_text(text) and None


def setting(**entries: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | entries))

    return change


def cut(by: int) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        data = (model / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(data[:by] if by < 0 else data + b"\0" * by)

    return change


def only(data: bytes) -> Callable[[Path], None]:
    return lambda model: (model / "model.safetensors").write_bytes(data) and None


def headed(header: object, length: int) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * length


def only_gguf(model: Path) -> None:
    drop("model.safetensors")(model)
    put("other.gguf", "GGUF")(model)


def lost_shard(model: Path) -> None:
    shard(model)
    (model / "model-00002-of-00002.safetensors").unlink()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_model_passes(tmp_path: Path, family: str) -> None:
    check(build_tiny_model(tmp_path / family, family))


def test_a_sharded_model_passes(model: Path) -> None:
    shard(model)
    check(model)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop("config.json"), r"tiny has no config\.json; fetch the model again"),
        (put("config.json", "{"), r"config\.json is not valid JSON \(.*\); fetch"),
        (put("config.json", "[]"), r"config\.json is not a JSON object"),
        (setting(model_type=None), "names no model_type"),
        (
            setting(model_type="perceptron"),
            r"tiny is of architecture 'perceptron', which mlx-lm .* does not know; update",
        ),
        (setting(model_file="model.py"), "asks to run its own code"),
        (drop("model.safetensors"), r"tiny has no weights \(model\*\.safetensors\); fetch"),
        (only_gguf, r"has no weights .*; it holds other\.gguf: name that file instead"),
        (lost_shard, r"tiny lacks the weight file model-00002-of-00002\.safetensors; finish the download"),
        (put(INDEX, "{}"), "has no weight_map"),
        (cut(-1), r"model\.safetensors is cut short \(\d+ bytes, expected \d+\); fetch it again"),
        (cut(1), "longer than its header says"),
        (only(b""), "cut short or not a safetensors file"),
        (only(b"\x10\0\0"), "cut short or not a safetensors file"),
        (only(struct.pack("<Q", 1 << 40) + b"{}"), "cut short or not a safetensors file"),
        (only(struct.pack("<Q", 4) + b"oops"), "damaged header"),
        (only(headed([1], 0)), "damaged header"),
        (only(headed({"x": {"dtype": "F32", "shape": [2]}}, 8)), "damaged header"),
        (
            only(headed({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, 8)),
            "tensor x has a damaged header",
        ),
        (drop("tokenizer.json"), r"tiny has no tokenizer \(tokenizer\.json\)"),
        (put("tokenizer.json", "{"), r"tokenizer\.json is not valid JSON"),
    ],
)
def test_a_damaged_model_is_refused_in_one_line(model: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(model)
    with pytest.raises(ModelError, match=message) as caught:
        check(model)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_and_a_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no model folder .*absent"):
        check(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="is a file, not a model folder"):
        check(tmp_path / "file")


def test_architectures_are_read_from_mlx_lm_with_its_renamings() -> None:
    modules, renamed = architectures()
    assert {"llama", "qwen3", "gemma3_text"} <= modules
    assert renamed["mistral"] == "llama"
    assert set(renamed.values()) <= modules


def test_a_renamed_architecture_passes(model: Path) -> None:
    setting(model_type="mistral")(model)
    check(model)

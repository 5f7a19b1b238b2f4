import os
import shutil
from pathlib import Path

import pytest

from pomona.workers.models.error import ModelError
from pomona.workers.models.fingerprint import combined_digest, tokenizer_digest, weights_digest
from pomona.workers.models.gguf_import import import_gguf
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_model import build_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "tiny")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def flip(path: Path, *, keep_time: bool) -> None:
    """Changes the last byte of a file."""
    times = path.stat()
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    if keep_time:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_equal_weights_have_equal_digests_wherever_they_lie(model: Path, tmp_path: Path, state: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "copy")
    assert len(weights_digest(model, state)) == 32
    assert weights_digest(copy, state) == weights_digest(model, state)
    assert weights_digest(build_tiny_model(tmp_path / "other", seed=1), state) != weights_digest(model, state)


def test_changed_weights_change_the_digest(model: Path, state: Path) -> None:
    before = weights_digest(model, state)
    flip(model / "model.safetensors", keep_time=False)
    assert weights_digest(model, state) != before


def test_a_digest_is_remembered_and_the_folder_left_untouched(model: Path, state: Path) -> None:
    names = sorted(os.listdir(model))
    before = weights_digest(model, state)
    flip(model / "model.safetensors", keep_time=True)  # invisible without reading: the memory answers
    assert weights_digest(model, state) == before
    shutil.rmtree(state)
    assert weights_digest(model, state) != before
    assert sorted(os.listdir(model)) == names


def test_a_damaged_memory_is_computed_again(model: Path, state: Path) -> None:
    before = weights_digest(model, state)
    for file in state.iterdir():
        file.write_text("{")
    assert weights_digest(model, state) == before


def test_a_memory_that_cannot_be_written_is_done_without(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(weights_digest(model, tmp_path / "file" / "state")) == 32


def test_the_library_remembers_by_default(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POMONA_HOME", str(tmp_path / "home"))
    weights_digest(model)
    assert len(list((tmp_path / "home" / "models" / ".digests").iterdir())) == 1


def test_an_import_answers_from_its_record_until_a_file_changes(model: Path, tmp_path: Path, state: Path) -> None:
    imported = import_gguf(write_gguf(model, tmp_path / "tiny.gguf"), tmp_path / "imported")
    before = weights_digest(imported, state)
    assert not state.exists()
    flip(imported / "model.safetensors", keep_time=False)
    assert weights_digest(imported, state) != before


def test_no_weights_are_an_error(tmp_path: Path, state: Path) -> None:
    with pytest.raises(ModelError, match=r"has no \*\.safetensors"):
        weights_digest(tmp_path, state)


def test_the_tokenizer_digest_follows_vocabulary_and_template_alone(model: Path, tmp_path: Path) -> None:
    before = tokenizer_digest(model)
    (model / "config.json").write_text("{}")
    assert tokenizer_digest(model) == before
    flip(model / "tokenizer.json", keep_time=True)
    changed = tokenizer_digest(model)
    assert changed != before
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert tokenizer_digest(model) != changed


def test_a_combined_digest_tells_names_and_contents_apart() -> None:
    one, two = "00" * 32, "11" * 32
    assert combined_digest({"a": one, "b": two}) == combined_digest({"b": two, "a": one})
    assert combined_digest({"a": one, "b": two}) != combined_digest({"a": two, "b": one})

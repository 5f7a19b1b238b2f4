import os
from pathlib import Path

import pytest

from pomona.workers.models.error import ModelError
from pomona.workers.models.library import ModelLibrary, slug
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_model import build_tiny_model


@pytest.fixture
def library(tmp_path: Path) -> ModelLibrary:
    return ModelLibrary(tmp_path / "models")


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    return write_gguf(build_tiny_model(tmp_path / "source"), tmp_path / "Tiny Llama.F32.gguf")


def test_an_absent_library_is_empty(library: ModelLibrary) -> None:
    assert library.list() == ()
    assert library.damaged() == ()


def test_models_are_listed_by_id_with_their_facts(library: ModelLibrary) -> None:
    build_tiny_model(library.folder / "zebra", "qwen3", context=512)
    path = build_tiny_model(library.folder / "orchard" / "apple")
    apple, zebra = library.list()
    assert (apple.id, zebra.id) == ("orchard/apple", "zebra")
    assert (apple.path, apple.architecture, apple.context, apple.source) == (path, "llama", 2048, "")
    assert (zebra.architecture, zebra.context) == ("qwen3", 512)
    assert apple.bytes == (path / "model.safetensors").stat().st_size


def test_a_damaged_model_is_listed_apart(library: ModelLibrary) -> None:
    build_tiny_model(library.folder / "good")
    (build_tiny_model(library.folder / "bad") / "tokenizer.json").unlink()
    assert [model.id for model in library.list()] == ["good"]
    assert ["bad has no tokenizer" in str(error) for error in library.damaged()] == [True]


def test_hidden_folders_are_no_models(library: ModelLibrary) -> None:
    build_tiny_model(library.folder / ".partial-1-x")
    assert library.list() == ()
    assert library.damaged() == ()


def test_a_model_is_found_by_id_and_by_path(library: ModelLibrary, tmp_path: Path) -> None:
    inside = build_tiny_model(library.folder / "orchard" / "apple")
    outside = build_tiny_model(tmp_path / "elsewhere" / "pear")
    assert library.find("orchard/apple").path == inside
    found = library.find(str(outside))
    assert (found.id, found.path) == ("pear", outside)


def test_a_half_model_is_refused_when_it_is_named(library: ModelLibrary) -> None:
    (build_tiny_model(library.folder / "half") / "config.json").unlink()
    with pytest.raises(ModelError, match=r"half has no config\.json"):
        library.find("half")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Qwen3-tiny", "no model 'Qwen3-tiny' here; did you mean 'qwen3-tiny'?"),
        ("qwen3-tony", "did you mean 'qwen3-tiny'?"),
        ("SmolLM2-135M", "did you mean 'smollm2-135m-instruct'?"),
        ("xyz", "no model 'xyz' here (qwen3-tiny, smollm2-135m-instruct); name a folder or a .gguf file"),
        ("", "no model '' here"),
        ("./absent/folder", "there is no model folder ./absent/folder; check the path"),
        ("absent.gguf", "absent.gguf; check the path"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(library: ModelLibrary, name: str, message: str) -> None:
    build_tiny_model(library.folder / "qwen3-tiny", "qwen3")
    with pytest.raises(ModelError) as caught:
        library.find(name)
    assert message in str(caught.value)


def test_a_gguf_file_is_imported_once(library: ModelLibrary, tiny_gguf: Path) -> None:
    told: list[str] = []
    first = library.find(str(tiny_gguf), progress=lambda done, total, text: told.append(text))
    assert first.id == "tiny-llama.f32"
    assert first.source == str(tiny_gguf)
    assert told
    told.clear()
    assert library.find(str(tiny_gguf), progress=lambda done, total, text: told.append(text)) == first
    assert told == []
    assert library.find("tiny-llama.f32") == first


def test_a_touched_but_equal_gguf_file_is_not_imported_again(library: ModelLibrary, tiny_gguf: Path) -> None:
    first = library.find(str(tiny_gguf))
    os.utime(tiny_gguf, (1, 1))
    assert library.find(str(tiny_gguf)) == first
    assert len(library.list()) == 1


def test_another_gguf_file_of_the_same_name_gets_its_own_id(
    library: ModelLibrary, tiny_gguf: Path, tmp_path: Path
) -> None:
    first = library.find(str(tiny_gguf))
    (tmp_path / "other").mkdir()
    model = build_tiny_model(tmp_path / "second", seed=1)
    second = library.find(str(write_gguf(model, tmp_path / "other" / tiny_gguf.name)))
    assert second.id.startswith("tiny-llama.f32-")
    assert {model.id for model in library.list()} == {first.id, second.id}
    assert library.find(second.source) == second


def test_new_content_under_an_old_path_is_a_new_model(library: ModelLibrary, tiny_gguf: Path, tmp_path: Path) -> None:
    first = library.find(str(tiny_gguf))
    write_gguf(build_tiny_model(tmp_path / "second", seed=1), tiny_gguf)
    assert library.find(str(tiny_gguf)).id != first.id


def test_an_import_takes_the_id_it_is_given(library: ModelLibrary, tiny_gguf: Path) -> None:
    assert library.add_gguf(tiny_gguf, id="orchard/apple").path == library.folder / "orchard" / "apple"
    with pytest.raises(ModelError, match=r"'\.\./x' cannot be a model id"):
        library.add_gguf(tiny_gguf, id="../x")


def test_slugs_are_plain() -> None:
    assert slug("SmolLM2 135M.Q4_1") == "smollm2-135m.q4_1"
    assert slug("…") == "model"

"""`pomona models` on tiny models made on the spot, and what `pomona serve` makes of names."""

from pathlib import Path

import pytest

from pomona.__main__ import main
from pomona.cli.serve import choose
from pomona.config import ModelConfig, SpeculationConfig
from pomona.refusal import Refusal, SettingsError
from pomona.workers.models.library import ModelLibrary
from tests.support.tiny_model import build_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("elsewhere") / "tiny")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelLibrary:
    monkeypatch.setenv("POMONA_HOME", str(tmp_path))
    monkeypatch.delenv("POMONA_LOG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    return ModelLibrary(tmp_path / "models")


def report(done: int, total: int, text: str) -> None: ...


def test_an_empty_library_says_where_it_is(library: ModelLibrary, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"no models in {library.folder}; `pomona serve` fetches the default one\n"
    assert shown.err == ""


def test_an_imported_folder_is_listed_and_outlives_its_source(
    library: ModelLibrary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = build_tiny_model(tmp_path / "download")
    (source / ".cache").mkdir()
    assert main(["models", "import", str(source), "--id", "team/small"]) == 0
    said = capsys.readouterr().out
    assert said.endswith(f"team/small is in {library.folder / 'team/small'}; serve it: pomona serve team/small\n")
    for path in source.glob("*.*"):
        if path.is_file():
            path.unlink()
    assert main(["models", "list"]) == 0
    listed = capsys.readouterr().out
    assert "MODEL" in listed
    assert "team/small" in listed
    assert "llama" in listed
    assert "2048" in listed
    library.check(library.folder / "team/small")


def test_an_import_reports_files_and_ends_at_the_total(library: ModelLibrary, tiny: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    model = library.add(tiny, progress=lambda *step: steps.append(step))
    assert model.id == "tiny"
    total = sum(path.stat().st_size for path in tiny.iterdir())
    assert steps[0] == (0, total, "importing config.json")
    assert steps[-1] == (total, total, "imported")
    assert [step[0] for step in steps] == sorted(step[0] for step in steps)


def test_an_import_costs_no_second_copy_of_the_weights(library: ModelLibrary, tiny: Path) -> None:
    model = library.add(tiny)
    assert (model.path / "model.safetensors").samefile(tiny / "model.safetensors")


def test_links_of_a_download_cache_are_followed(library: ModelLibrary, tiny: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in tiny.iterdir():
        (snapshot / path.name).symlink_to(path)
    model = library.add(snapshot)
    assert not any(path.is_symlink() for path in model.path.iterdir())
    library.check(model.path)


@pytest.mark.parametrize("model_id", ["../out", "a/b/c", " "])
def test_an_id_that_is_no_name_is_refused(library: ModelLibrary, tiny: Path, model_id: str) -> None:
    with pytest.raises(Refusal, match="cannot be a model id"):
        library.add(tiny, id=model_id)
    assert not library.folder.exists()


def test_an_id_that_is_taken_is_refused_and_left_alone(
    library: ModelLibrary, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library.add(tiny)
    assert main(["models", "import", str(tiny)]) == 1
    assert capsys.readouterr().err == (
        f"pomona: {library.folder / 'tiny'} exists already; move it away or choose another id with --id\n"
    )
    library.check(library.folder / "tiny")


def test_a_folder_that_is_not_whole_is_not_imported(
    library: ModelLibrary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = build_tiny_model(tmp_path / "half")
    (half / "model.safetensors").unlink()
    assert main(["models", "import", str(half)]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("pomona: ")
    assert "has no weights" in printed
    assert printed.count("\n") == 1
    assert not library.folder.exists()


def test_a_damaged_model_is_named_beside_the_whole_ones(
    library: ModelLibrary, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library.add(tiny, id="whole")
    broken = library.folder / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{", encoding="utf-8")
    assert main(["models", "list"]) == 1
    shown = capsys.readouterr()
    assert "whole" in shown.out
    assert "broken" not in shown.out
    assert "broken" in shown.err


def test_names_choose_configured_models_imported_ones_and_folders(library: ModelLibrary, tiny: Path) -> None:
    library.add(tiny, id="imported")
    configured = ModelConfig(id="mine", path=str(tiny), max_context=64)
    unused = ModelConfig(id="unused", path="/nowhere")
    assert choose(("mine", "imported", str(tiny)), (configured, unused), library, report) == (
        configured,
        ModelConfig(id="imported", path=str(library.folder / "imported")),
        ModelConfig(id="tiny", path=str(tiny)),
    )


def test_without_names_the_configured_models_are_served(library: ModelLibrary, tiny: Path) -> None:
    library.add(tiny, id="imported")
    configured = (
        ModelConfig(id="mine", path=str(tiny)),
        ModelConfig(id="imported", path=str(library.folder / "imported"), replicas=2),
    )
    assert choose((), configured, library, report) == configured


@pytest.mark.parametrize("imported", [True, False])
def test_a_draft_model_must_be_there_too(library: ModelLibrary, tiny: Path, imported: bool) -> None:
    small = library.folder / "small" if imported else tiny.with_name("small")
    speculation = SpeculationConfig(draft_model=str(small))
    configured = (ModelConfig(id="mine", path=str(tiny), speculation=speculation),)
    with pytest.raises(Refusal, match="small"):
        choose((), configured, library, report)
    build_tiny_model(small)
    assert choose((), configured, library, report) == configured


@pytest.mark.parametrize("path", ["/nowhere", None])
def test_a_configured_model_that_is_not_there_prevents_the_start(library: ModelLibrary, path: str | None) -> None:
    configured = (ModelConfig(id="gone", path=path or str(library.folder / "gone")),)
    with pytest.raises(Refusal, match="nowhere" if path else "gone"):
        choose((), configured, library, report)


def test_one_id_for_two_models_is_refused(library: ModelLibrary, tiny: Path) -> None:
    with pytest.raises(SettingsError, match="2 models have the id tiny; name each once"):
        choose((str(tiny), str(tiny)), (), library, report)

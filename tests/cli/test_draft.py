"""`pomona draft fit-corrector` on a model whose head drifts in a known way."""

import subprocess
import sys
from pathlib import Path

import pytest

from pomona.__main__ import main
from pomona.cli.draft.fit_corrector import Wish, run
from pomona.cli.draft.prompts import PROMPTS, read_prompts
from pomona.home import Home
from pomona.refusal import Refusal
from pomona.workers.speculation import answers
from pomona.workers.speculation.corrector_file import find_corrector
from tests.support.tiny_model import build_tiny_model
from tests.workers.speculation.heads import known


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("POMONA_HOME", str(tmp_path / "home"))
    return Home.resolve()


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return known(tmp_path_factory.mktemp("drifting") / "model", "hidden", drifts=True)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("an apple\n\na pear\nan apple\n  two plums \nthree figs\n", encoding="utf-8")
    return file


def test_a_corrector_is_fitted_shown_and_found_by_the_worker(
    drifting: Path, prompts: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--prompts", str(prompts), "--tokens", "9", "--kind", "c1"]
    assert main(["draft", "fit-corrector", str(drifting), *options]) == 0
    shown = capsys.readouterr()
    corrector = find_corrector(drifting, home)
    assert corrector is not None
    assert corrector.pays
    lines = shown.out.splitlines()
    assert lines[0].split() == ["DEPTH", "BEFORE", "AFTER"]
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    for line, before, after in zip(lines[1:4], corrector.account.before, corrector.account.after, strict=True):
        assert line.split()[1:] == [f"{before:.3f}", f"{after:.3f}"]
    assert lines[4].startswith(f"c1, blend {corrector.account.blend:g}: +")
    assert "it is used: " in lines[4]
    assert shown.err.splitlines() == ["4 of 4 prompts answered", "fitting c1", "choosing"]


def test_ctrl_c_uses_what_was_answered(
    drifting: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, asked = answers.Listener.answer, []

    def interrupted(*arguments: object) -> object:
        asked.append(arguments)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(answers.Listener, "answer", interrupted)
    out = tmp_path / "some" / "corrector.safetensors"
    assert run(Wish(str(drifting), prompts, 9, 2, "c0", 4, out)) == 0
    assert out.is_file()
    assert "3 of 4 prompts answered" in capsys.readouterr().err


def test_too_few_answers_are_refused(drifting: Path, prompts: Path) -> None:
    with pytest.raises(Refusal, match=r"too little was answered: 0 prompts .*; give more prompts, or a greater"):
        run(Wish(str(drifting), prompts, 2, 3, "c0", 4, None))


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "plain")
    with pytest.raises(Refusal, match="plain has no prediction head"):
        run(Wish(str(folder), None, 9, 3, "auto", 4, None))


def test_a_file_that_cannot_be_written_is_named(drifting: Path, prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"prompts\.txt.* cannot be written"):
        run(Wish(str(drifting), prompts, 9, 2, "c0", 4, prompts / "corrector.safetensors"))


def test_prompts_are_the_lines_of_a_file(prompts: Path, tmp_path: Path) -> None:
    assert read_prompts(prompts) == ["an apple", "a pear", "two plums", "three figs"]
    assert read_prompts(None) == list(PROMPTS)
    (tmp_path / "one.txt").write_text("only one\n", encoding="utf-8")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    for name, reason in (("one.txt", "fewer than two"), ("bytes", "cannot be read"), ("missing", "cannot be read")):
        with pytest.raises(Refusal, match=f"{name} .*{reason}|{reason}.*{name}"):
            read_prompts(tmp_path / name)


def test_the_command_costs_the_others_nothing() -> None:
    """Its insides are imported when it runs."""
    code = "import sys, pomona.cli.app; print('mlx.core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert done.stdout == b"False\n"

"""The command as a whole: exit codes, one line for each mistake, and nothing heavy for the light commands."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pomona
from pomona.__main__ import main
from pomona.cli.app import app


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POMONA_HOME", str(tmp_path))
    for name in ("POMONA_API_KEY", "POMONA_API_KEYS", "POMONA_HOST", "POMONA_PORT", "POMONA_CONFIG", "POMONA_LOG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_version_and_help_answer() -> None:
    shown = CliRunner().invoke(app, ["version"])
    assert (shown.exit_code, shown.output) == (0, f"pomona {pomona.__version__}\n")
    for arguments in ([], ["--help"]):
        shown = CliRunner().invoke(app, arguments)
        assert shown.exit_code == 0
        for command in ("serve", "chat", "models", "cache", "doctor", "bench", "version"):
            assert command in shown.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["srve"], "No such command 'srve'"),
        (["serve", "--prot", "1"], "No such option"),
        (["serve", "--port", "x"], "'--port'"),
        (["serve", "--port", "65536"], "'--port'"),
        (["chat", "--temperature", "-1"], "'--temperature'"),
        (["chat", "--max-tokens", "0"], "'--max-tokens'"),
        (["models", "import"], "Missing argument"),
        (["serve", "--host", "0.0.0.0"], "host 0.0.0.0: other machines could reach it and no API key is set"),
        (["serve", "--config", "nowhere.toml"], "nowhere.toml: there is no such file"),
        (["chat", "--config", "nowhere.toml"], "nowhere.toml: there is no such file"),
    ],
)
def test_a_mistake_in_the_command_or_the_configuration_is_one_line_and_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("pomona: ")
    assert printed.err.count("\n") == 1
    assert expected in printed.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve", "nothing-like-it"], "no model 'nothing-like-it' here"),
        (["serve", "./nowhere"], "there is no model folder ./nowhere"),
        (["models", "import", "nowhere.gguf"], "nowhere.gguf; check the path"),
    ],
)
def test_whatever_else_is_wrong_is_one_line_and_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("pomona: ")
    assert printed.err.count("\n") == 1
    assert expected in printed.err


def test_the_traceback_is_there_for_who_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POMONA_LOG", "debug")
    assert main(["serve", "nothing-like-it"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback")
    assert printed.splitlines()[-1].startswith("pomona: no model")


def test_an_unexpected_error_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POMONA_HOME", "x" * 300)
    assert main(["models", "list"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("pomona: unexpected OSError: ")
    assert printed.endswith("(POMONA_LOG=debug shows where)\n")
    assert printed.count("\n") == 1


def test_a_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 2
    assert "import" in capsys.readouterr().err


def test_no_command_imports_mlx_and_help_imports_nothing_heavy() -> None:
    program = (
        "import sys, pomona.__main__\n"
        "heavy = {'mlx', 'mlx_lm', 'transformers', 'numpy', 'httpx', 'fastapi', 'zmq'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import pomona.cli.serve, pomona.cli.chat, pomona.cli.models, pomona.cli.doctor, pomona.launch\n"
        "assert 'mlx' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_module_is_the_command_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pomona", "version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"pomona {pomona.__version__}\n"

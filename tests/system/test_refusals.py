"""What goes wrong at the start or in a request is one line that names the thing and the mend."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.server import POMONA, Server, free_port, serving


def start(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`pomona serve` that is expected to refuse."""
    import os

    return subprocess.run(
        [*POMONA, "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "POMONA_HOME": str(tmp_path / "home")},
        check=False,
    )


def the_line(result: "subprocess.CompletedProcess[str]") -> str:
    """The one line of complaint."""
    assert result.returncode != 0
    assert "Traceback" not in result.stdout + result.stderr
    lines = [line for line in (result.stdout + result.stderr).splitlines() if line.startswith("pomona: ")]
    assert len(lines) == 1, result.stdout + result.stderr
    return lines[0]


def no_config(folder: Path) -> str:
    (folder / "config.json").unlink()
    return "config.json"


def half_json(folder: Path) -> str:
    (folder / "config.json").write_text('{"model_type": "lla')
    return "config.json"


def no_weights(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    return "weights"


def cut_weights(folder: Path) -> str:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return "model.safetensors"


def noise(folder: Path) -> str:
    (folder / "model.safetensors").write_bytes(b"\xff" * 4096)
    return "model.safetensors"


def no_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.json").unlink()
    return "tokenizer"


def missing_shard(folder: Path) -> str:
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return "model-00002-of-00002.safetensors"


DAMAGES = (no_config, half_json, no_weights, cut_weights, noise, no_tokenizer, missing_shard)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_folder(tmp_path: Path, tiny_model: Path, damage: Callable[[Path], str]) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny_model, folder)
    named = damage(folder)
    line = the_line(start(tmp_path, str(folder), "--port", str(free_port())))
    assert named in line
    assert "broken" in line


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    assert "nobody" in the_line(start(tmp_path, "nobody", "--port", str(free_port())))
    assert "absent" in the_line(start(tmp_path, str(tmp_path / "absent"), "--port", str(free_port())))


def test_a_configuration_that_cannot_be_read(tmp_path: Path, tiny_model: Path) -> None:
    file = tmp_path / "my.toml"
    for text, named in (
        ("[gateway\n", "my.toml"),
        ("[gateway]\nprot = 1\n", "prot"),
        ("[gateway]\nport = 'x'\n", "port"),
    ):
        file.write_text(text)
        line = the_line(start(tmp_path, str(tiny_model), "--config", str(file)))
        assert named in line
    assert "gone.toml" in the_line(start(tmp_path, str(tiny_model), "--config", str(tmp_path / "gone.toml")))


def test_a_bind_beyond_loopback_without_a_key(tmp_path: Path, tiny_model: Path) -> None:
    line = the_line(start(tmp_path, str(tiny_model), "--host", "0.0.0.0", "--port", str(free_port())))
    assert "key" in line


@pytest.fixture(scope="module")
def small(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> "Server":
    toml = "[gateway]\nmax_body_bytes = 20000\n"
    with serving(tmp_path_factory.mktemp("small"), [tiny_model], toml=toml) as server:
        yield server


def test_a_port_in_use(tmp_path: Path, tiny_model: Path, small: Server) -> None:
    line = the_line(start(tmp_path, str(tiny_model), "--port", str(small.port)))
    assert str(small.port) in line
    assert "--port" in line


@pytest.mark.parametrize(
    ("content", "status", "named"),
    [
        (b'{"model": "tiny", "messages": [', 400, "JSON"),
        (b"[]", 400, "object"),
        (b'{"model": "tiny"}', 400, "messages"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temprature": 1}', 400, "temprature"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "top_p": 7}', 400, "top_p"),
        (b'{"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}', 404, "nobody"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "' + b"x" * 20000 + b'"}]}', 413, "20000"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "' + b"x" * 9000 + b'"}]}', 400, "2048"),
    ],
    ids=["half", "list", "no-messages", "misspelt", "range", "model", "body", "context"],
)
def test_bad_requests(small: Server, content: bytes, status: int, named: str) -> None:
    response = httpx.post(
        f"{small.url}/v1/chat/completions", content=content, headers={"content-type": "application/json"}
    )
    assert response.status_code == status
    assert set(response.json()["error"]) >= {"message", "type", "param", "code"}
    assert named in json.dumps(response.json()["error"])
    anthropic = httpx.post(
        f"{small.url}/v1/messages",
        content=content.replace(b'"model"', b'"max_tokens": 5, "model"', 1),
        headers={"content-type": "application/json"},
    )
    if named != "temprature":  # Messages clients send fields of their own
        assert anthropic.status_code == status
        assert anthropic.json()["type"] == "error"
    assert "Traceback" not in small.log

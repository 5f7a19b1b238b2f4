"""A GGUF file -> a Hugging Face folder that mlx-lm loads. Nothing is visible under its name until it is whole."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from pomona.workers.models.error import ModelError
from pomona.workers.models.fingerprint import combined_digest
from pomona.workers.models.gguf_config import Json, config_from, end_ids
from pomona.workers.models.gguf_file import GgufFile
from pomona.workers.models.gguf_tokenizer import tokenizer_config_from, tokenizer_from
from pomona.workers.models.gguf_weights import Dtype, Progress, write_weights
from pomona.workers.models.record import NAME, ImportRecord, Stamp, read_record

WEIGHTS = "model.safetensors"


def native_dtype() -> Dtype:
    """What weights are imported as: float32 for CPU kernels, bfloat16 where Metal runs."""
    return "bfloat16" if sys.platform == "darwin" else "float32"


def silent(done: int, total: int, text: str) -> None:
    """The progress of an import that nobody watches."""


def import_gguf(
    source: Path,
    target: Path,
    *,
    dtype: Dtype | None = None,
    progress: Progress = silent,
    label: str | None = None,
) -> Path:
    """Writes the folder `target` from the GGUF file `source` and returns it.

    A `target` that was imported from the same content before is left as it is, whatever its dtype; one whose record is
    of another format, or damaged, is made anew. `label` is put into the record in place of the path, for a source that
    does not stay. Raises ModelError: unreadable or unknown file, or a `target` that holds something else. When it is
    interrupted nothing is left under `target`.
    """
    dtype = dtype or native_dtype()
    sha256 = file_sha256(source, progress)
    if target.exists():
        record = read_record(target)
        if record is not None and record.source_sha256 == sha256:
            return target
        if record is not None or not (target / NAME).exists():
            raise ModelError(
                f"{target} exists and is not an import of {source.name}; move it away or choose another name"
            )
    gguf = GgufFile(source)
    config = config_from(gguf, dtype)
    with partial(target) as folder:
        _write_json(folder / "config.json", config)
        _write_json(
            folder / "generation_config.json",
            {"bos_token_id": config["bos_token_id"], "eos_token_id": list[Json](end_ids(gguf))},
        )
        progress(0, 0, "rebuilding the tokenizer")
        tokenizer_from(gguf).save(str(folder / "tokenizer.json"))
        context = gguf.get("{arch}.context_length", int)
        _write_json(folder / "tokenizer_config.json", tokenizer_config_from(gguf, context))
        digest = write_weights(gguf, folder / WEIGHTS, dtype, progress)
        ImportRecord(
            source=label or str(source.absolute()),
            source_sha256=sha256,
            source_stamp=None if label else Stamp.of(source),
            dtype=dtype,
            weights_digest=combined_digest({WEIGHTS: digest}).hex(),
            weights={WEIGHTS: Stamp.of(folder / WEIGHTS)},
        ).write(folder)
    return target


def file_sha256(path: Path, progress: Progress = silent) -> str:
    """In hex; raises ModelError if the file cannot be read."""
    digest = hashlib.sha256()
    done = 0
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
                done += len(chunk)
                progress(done, total, f"reading {path.name}")
    except FileNotFoundError as error:
        raise ModelError(f"no file at {path}; check the path") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


@contextmanager
def partial(target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its name at the end, or is gone."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        folder = Path(tempfile.mkdtemp(prefix=f".partial-{os.getpid()}-", dir=target.parent))
    except OSError as error:
        raise ModelError(f"{target.parent} cannot be written: {error.strerror}; choose another POMONA_HOME") from error
    try:
        yield folder
        folder.chmod(0o755)
        if target.exists() and read_record(target) is None:
            shutil.rmtree(target)
        try:
            folder.rename(target)
        except OSError:
            if read_record(target) is None:  # Otherwise another process was faster with the same import.
                raise
    except OSError as error:
        raise ModelError(f"{target} cannot be written: {error.strerror}; free some disk space") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Removes what imports that were killed have left."""
    for folder in parent.glob(".partial-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _write_json(path: Path, value: dict[str, Json]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

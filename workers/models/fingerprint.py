"""Digests of a model's weights and tokenizer: the root of every cache key.

A digest is a SHA-256 over the files' names and the SHA-256 of their contents. Weights are read once: an import records
its digest, and others are remembered under the library's folder, never in the user's own.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pomona.home import Home
from pomona.runtime.wire import Section
from pomona.workers.models.error import ModelError
from pomona.workers.models.record import Stamp, read_record

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


class _Known(Section):
    files: dict[str, Stamp]
    digest: str


def weights_digest(folder: Path, state: Path | None = None) -> bytes:
    """32 bytes that change whenever the weights do; raises ModelError where there are none.

    `state` is the folder that remembers digests, by default `.digests` in the library of `Home.resolve()`.
    """
    folder = folder.resolve()
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no *.safetensors; fetch the model again")
    stamps = {file.name: Stamp.of(file) for file in files}
    record = read_record(folder)
    if record is not None and record.weights == stamps:
        return bytes.fromhex(record.weights_digest)
    memory = (state or Home.resolve().models / ".digests") / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()}.json"
    known = _recall(memory)
    if known is not None and known.files == stamps:
        return bytes.fromhex(known.digest)
    digest = combined_digest({file.name: _sha256(file) for file in files})
    _remember(memory, _Known(files=stamps, digest=digest.hex()))
    return digest


def tokenizer_digest(folder: Path) -> bytes:
    """32 bytes that change whenever a file that makes tokens, or the chat template, does."""
    files = (folder / name for name in TOKENIZER_FILES)
    return combined_digest({file.name: _sha256(file) for file in files if file.is_file()})


def combined_digest(contents: Mapping[str, str]) -> bytes:
    """One digest of several files, given by name and hex SHA-256; the order does not matter."""
    digest = hashlib.sha256()
    for name in sorted(contents):
        digest.update(hashlib.sha256(name.encode()).digest() + bytes.fromhex(contents[name]))
    return digest.digest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _recall(memory: Path) -> _Known | None:
    try:
        return msgspec.json.decode(memory.read_bytes(), type=_Known)
    except (OSError, msgspec.DecodeError):
        return None


def _remember(memory: Path, known: _Known) -> None:
    """Best effort: where nothing can be written the digest is computed again next time."""
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=memory.parent)
    except OSError:
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(known))
    os.replace(name, memory)

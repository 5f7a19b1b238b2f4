"""The models on this machine: what is in the library's folder, and what else can be named."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pomona.workers.models import embedded
from pomona.workers.models.check import check
from pomona.workers.models.error import ModelError
from pomona.workers.models.folder_import import import_folder
from pomona.workers.models.gguf_import import file_sha256, import_gguf, silent
from pomona.workers.models.gguf_weights import Dtype, Progress
from pomona.workers.models.record import ImportRecord, Stamp, read_record
from pomona.workers.models.settings import context_length, read_config


@dataclass(frozen=True)
class ModelFolder:
    """A whole model on disk, under the id that clients call it by."""

    id: str
    path: Path
    architecture: str
    """`model_type` of its config.json."""
    context: int
    """Tokens of prompt and answer together."""
    bytes: int
    """Size of the weight files."""
    source: str = ""
    """What it was imported from; empty for a folder that was put there."""


class ModelLibrary:
    """Models in a folder: `folder/NAME`, or `folder/ORGANISATION/NAME` with the id `ORGANISATION/NAME`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self) -> tuple[ModelFolder, ...]:
        """The whole models, by id."""
        return tuple(model for model in self._described() if isinstance(model, ModelFolder))

    def damaged(self) -> tuple[ModelError, ...]:
        """What is wrong with the other folders."""
        return tuple(error for error in self._described() if isinstance(error, ModelError))

    def find(self, name: str, *, dtype: Dtype | None = None, progress: Progress = silent) -> ModelFolder:
        """The model that `name` means: an id in the library, a folder, a .gguf file (imported first), or the embedded
        default (fetched first). Raises ModelError if there is none, or if it is not whole.
        """
        if name in dict(self._folders()) or self._is_inside(name):
            return describe(name, self.folder / name)
        if name == embedded.ID:
            return describe(name, embedded.fetch_embedded(self.folder, dtype=dtype, progress=progress))
        path = Path(name).expanduser()
        if name and path.is_dir():
            return describe(path.resolve().name, path.resolve())
        if path.suffix.lower() == ".gguf":
            return self.add_gguf(path, dtype=dtype, progress=progress)
        raise self._unknown(name)

    def add(self, source: Path, *, id: str | None = None, progress: Progress = silent) -> ModelFolder:
        """Imports a GGUF file or a model folder; raises ModelError if it is neither, or not whole."""
        if not source.is_dir():
            return self.add_gguf(source, id=id, progress=progress)
        name = _valid(id or source.resolve().name)
        return describe(name, import_folder(source, self.folder / name, progress=progress))

    def add_gguf(
        self, source: Path, *, id: str | None = None, dtype: Dtype | None = None, progress: Progress = silent
    ) -> ModelFolder:
        """Imports a GGUF file once; the id comes from the file's name unless given. Raises ModelError."""
        source = source.absolute()
        if not source.is_file():
            raise ModelError(f"no file at {source}; check the path")
        name = _valid(id or slug(source.stem))
        record = read_record(self.folder / name)
        if record is None or not _same_file(record, source):
            taken = (self.folder / name).exists()
            if taken and id is None:  # Another file of the same name: this one's id tells its content.
                sha256 = file_sha256(source, progress)
                name = name if record and record.source_sha256 == sha256 else f"{name}-{sha256[:8]}"
            import_gguf(source, self.folder / name, dtype=dtype, progress=progress)
        return describe(name, self.folder / name)

    def check(self, folder: Path) -> None:
        """Raises ModelError naming the first thing that is wrong and the mend."""
        check(folder)

    def _described(self) -> Iterator[ModelFolder | ModelError]:
        for name, path in self._folders():
            try:
                yield describe(name, path)
            except ModelError as error:
                yield error

    def _folders(self) -> Iterator[tuple[str, Path]]:
        for path in _subfolders(self.folder):
            if (path / "config.json").exists():
                yield path.name, path
                continue
            for inner in _subfolders(path):
                if (inner / "config.json").exists():
                    yield f"{path.name}/{inner.name}", inner

    def _is_inside(self, name: str) -> bool:
        """Whether it is a folder of the library that lacks its configuration, for the error to be about that."""
        parts = Path(name).parts
        return len(parts) == 1 and not name.startswith(".") and any((self.folder / name).glob("*.safetensors"))

    def _unknown(self, name: str) -> ModelError:
        if "/" in name and (name.startswith((".", "/", "~")) or name.count("/") > 1):
            return ModelError(f"there is no model folder {name}; check the path, or see `pomona models list`")
        ids = [*dict(self._folders()), embedded.ID]
        folded = {known.casefold(): known for known in ids}
        close = difflib.get_close_matches(name.casefold(), folded, n=1)
        if close:
            return ModelError(f"no model {name!r} here; did you mean {folded[close[0]]!r}?")
        return ModelError(f"no model {name!r} here ({', '.join(sorted(set(ids)))}); name a folder or a .gguf file")


def describe(name: str, path: Path) -> ModelFolder:
    """Raises ModelError if the folder is not a whole model."""
    check(path)
    record = read_record(path)
    return ModelFolder(
        id=name,
        path=path,
        architecture=str(read_config(path)["model_type"]),
        context=context_length(path),
        bytes=sum(file.stat().st_size for file in path.glob("model*.safetensors")),
        source=record.source if record else "",
    )


def slug(stem: str) -> str:
    """A file's stem as a model id: `SmolLM2 135M.Q4_1` is `smollm2-135m.q4_1`."""
    return re.sub(r"[^a-z0-9._]+", "-", stem.lower()).strip("-._") or "model"


def _valid(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name):
        raise ModelError(f"{name!r} cannot be a model id; use letters, digits, dots, dashes and underscores")
    return name


def _same_file(record: ImportRecord, source: Path) -> bool:
    return record.source == str(source) and record.source_stamp == Stamp.of(source)


def _subfolders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))

"""A Hugging Face model folder -> the library, without a second copy of the weights where the disk allows."""

import os
import shutil
from pathlib import Path

from pomona.workers.models.check import check
from pomona.workers.models.error import ModelError
from pomona.workers.models.gguf_import import partial, silent
from pomona.workers.models.gguf_weights import Progress
from pomona.workers.models.record import NAME


def import_folder(source: Path, target: Path, *, progress: Progress = silent) -> Path:
    """Puts the files of `source` under `target` and returns it; subfolders and hidden files stay behind.

    Files are hard links, so removing `source` later does no harm; on another disk they are copies. Raises ModelError if
    `source` is not a whole model, or if `target` exists. When it is interrupted nothing is left under `target`.
    """
    check(source)
    if target.exists():
        raise ModelError(f"{target} exists already; move it away or choose another id with --id")
    files = [path for path in sorted(source.iterdir()) if path.is_file() and not path.name.startswith(".")]
    files = [path for path in files if path.name != NAME]
    total = sum(path.stat().st_size for path in files)
    done = 0
    with partial(target) as folder:
        for path in files:
            progress(done, total, f"importing {path.name}")
            _link(path, folder / path.name)
            done += path.stat().st_size
    progress(done, total, "imported")
    return target


def _link(source: Path, target: Path) -> None:
    real = source.resolve()  # A download cache holds links to files elsewhere.
    try:
        os.link(real, target)
    except OSError:
        shutil.copy2(real, target)

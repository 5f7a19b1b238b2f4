"""A cache folder as a reader sees it, beside a server that may store, evict and move files at any moment.

Nothing is locked and nothing is changed; a file that vanishes between two looks was never there.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pomona.cache.block import Block
from pomona.cache.messages import BlockKey


class StoredFile(NamedTuple):
    block: Block
    path: Path
    used: float
    """When it was last written or asked for, or a block behind it was; seconds since the epoch."""
    made: float | None
    """When it was written, where the file system tells."""


class Shelf(NamedTuple):
    """What a folder held at one moment."""

    files: Mapping[BlockKey, StoredFile]
    """Most recently used first."""
    strangers: tuple[Path, ...]
    """What lies among the blocks and is none, by its name, its kind or its size."""
    quarantined: int
    quarantined_bytes: int
    free_bytes: int
    """What the disk can still take."""

    @property
    def bytes(self) -> int:
        return sum(file.block.size for file in self.files.values())

    def lineage(self, key: BlockKey) -> tuple[StoredFile, ...]:
        """The block and all stored ones before it, head first."""
        path: dict[BlockKey, StoredFile] = {}
        file = self.files.get(key)
        while file is not None and file.block.key not in path:  # names could be forged into a ring
            path[file.block.key] = file
            file = self.files.get(file.block.parent)
        return tuple(reversed(path.values()))

    def find(self, prefix: str) -> tuple[StoredFile, ...]:
        """The blocks whose keys begin with these hexadecimal digits."""
        return tuple(file for key, file in self.files.items() if key.hex().startswith(prefix.lower()))

    def heads_first(self) -> tuple[StoredFile, ...]:
        """All blocks, each behind the one before it."""
        ordered: dict[BlockKey, StoredFile] = {}
        for key in self.files:
            if key not in ordered:
                ordered.update((file.block.key, file) for file in self.lineage(key))
        return tuple(ordered.values())


def look(root: Path) -> Shelf:
    """Raises OSError if there is no such folder or it cannot be read; a folder without blocks is an empty shelf."""
    os.listdir(root)
    found: list[StoredFile] = []
    strangers: list[Path] = []
    for path, facts in _children(root / "blocks"):
        if not stat.S_ISDIR(facts.st_mode):
            strangers.append(path)
            continue
        for inner, inner_facts in _children(path):
            block = Block.parse(inner.name)
            if block is not None and block.key.hex()[:2] == path.name and _is_whole(inner_facts, block):
                made: float | None = getattr(inner_facts, "st_birthtime", None)
                found.append(StoredFile(block, inner, inner_facts.st_mtime, made))
            else:
                strangers.append(inner)
    held = [facts.st_size for _, facts in _children(root / "quarantine")]
    free = shutil.disk_usage(root).free
    return Shelf(_by_use(found), tuple(sorted(strangers)), len(held), sum(held), free)


def open_block(file: StoredFile) -> BinaryIO | None:
    """The file, or None if it is gone. Raises OSError if it cannot be opened."""
    try:
        return os.fdopen(os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb")
    except FileNotFoundError:
        return None


def _is_whole(facts: os.stat_result, block: Block) -> bool:
    return stat.S_ISREG(facts.st_mode) and facts.st_size == block.size


def _children(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            yield folder / name, (folder / name).lstat()


def _by_use(found: list[StoredFile]) -> dict[BlockKey, StoredFile]:
    """A block that was asked for took those before it along; only its own file carries the time."""
    known = {file.block.key: file for file in found}
    newest: dict[BlockKey, StoredFile] = {}
    for last in sorted(known.values(), key=lambda file: file.used, reverse=True):
        step: StoredFile | None = last
        while step is not None and step.block.key not in newest:
            newest[step.block.key] = step._replace(used=last.used)
            step = known.get(step.block.parent)
    return newest

"""The folder of the SSD tier: one file for each block, and no second truth beside the names of the files.

    lock          held by the server that uses the folder
    blocks/ab/    files named for their block; ab are the first two letters of the key
    tmp/          blocks that are being written
    quarantine/   bounded: what should have been a block and is not

Everything that touches a file may raise OSError; what to do then is the service's business.
"""

import contextlib
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pomona.cache.block import Block
from pomona.cache.lock import FolderLock
from pomona.cache.quarantine import Quarantine

log = logging.getLogger(__name__)

OURS = frozenset({"lock", "blocks", "tmp", "quarantine"})


class WrongSize(ValueError):
    """A temporary file is not as long as its block."""


class BlockFiles(Protocol):
    """Where the service keeps blocks. All methods may raise OSError."""

    def open(self) -> tuple[Block, ...]:
        """Take the folder and find what it holds, least recent first; leftovers are swept. Legal again after a failure.

        Raises FolderBusy where another server uses it.
        """

    def close(self) -> None: ...

    def temporary(self, block: Block, attempt: str) -> Path:
        """Where to write the block; `attempt` sets apart the writes of one block."""

    def publish(self, temporary: Path, block: Block) -> None:
        """The temporary file becomes the block. Raises WrongSize, or FileNotFoundError if it was never written."""

    def discard(self, temporary: Path) -> None:
        """Remove a temporary file, whether or not it exists."""

    def sweep(self, keep: frozenset[Path], before: float) -> int:
        """Remove temporary files not in `keep` that were last written before this wall-clock time; returns how many."""

    def path(self, block: Block) -> Path: ...

    def touch(self, block: Block) -> None:
        """Its chain was used now. Raises FileNotFoundError if the file is gone."""

    def remove(self, block: Block) -> None:
        """Evict; nothing happens if the file is gone."""

    def quarantine(self, block: Block) -> None:
        """Put a bad block aside; nothing happens if the file is gone."""

    @property
    def quarantined_bytes(self) -> int: ...

    def free_bytes(self) -> int:
        """Bytes that the disk can still take."""

    def probe(self, size: int) -> None:
        """Write `size` bytes and remove them again; raises OSError as a block of that size would."""


class BlockFolder:
    """`BlockFiles` in a real folder."""

    def __init__(self, root: Path, max_quarantine_bytes: int) -> None:
        self._root = root
        self._blocks = root / "blocks"
        self._temporary = root / "tmp"
        self._quarantine = Quarantine(root / "quarantine", max_quarantine_bytes)
        self._lock: FolderLock | None = None

    def open(self) -> tuple[Block, ...]:
        self._make_private()
        if self._lock is None:
            self._lock = FolderLock(self._root / "lock")
        self._quarantine.open()
        self.sweep(frozenset(), float("inf"))
        found = sorted(self._scan())
        return tuple(block for _, block in found)

    def _make_private(self) -> None:
        """Mode 0700 for all that is ours; a folder that holds other things too keeps its own mode."""
        self._root.mkdir(parents=True, exist_ok=True)
        if OURS.issuperset(os.listdir(self._root)):
            self._root.chmod(0o700)
        for folder in (self._blocks, self._temporary, self._root / "quarantine"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)

    def _scan(self) -> Iterator[tuple[int, Block]]:
        """(mtime in ns, block) of every good name of the right size; all else goes to quarantine."""
        for fan in list(self._blocks.iterdir()):
            if fan.is_symlink() or not fan.is_dir():
                log.warning("block-bad path=%s reason='not a folder of blocks'", fan)
                self._quarantine.take(fan)
                continue
            with os.scandir(fan) as entries:
                files = list(entries)
            for entry in files:
                facts = entry.stat(follow_symlinks=False)
                block = Block.parse(entry.name)
                good = block is not None and stat.S_ISREG(facts.st_mode) and facts.st_size == block.size
                if good and block is not None and block.key.hex()[:2] == fan.name:
                    yield facts.st_mtime_ns, block
                else:
                    log.warning("block-bad path=%s reason='not the name and size of a block'", entry.path)
                    self._quarantine.take(Path(entry.path))

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def temporary(self, block: Block, attempt: str) -> Path:
        return self._temporary / f"{block.key.hex()}-{attempt}"

    def publish(self, temporary: Path, block: Block) -> None:
        size = temporary.stat().st_size
        if size != block.size:
            raise WrongSize(f"{size} bytes were written of a block of {block.size}")
        target = self.path(block)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        temporary.replace(target)

    def discard(self, temporary: Path) -> None:
        temporary.unlink(missing_ok=True)

    def sweep(self, keep: frozenset[Path], before: float) -> int:
        swept = 0
        for path in list(self._temporary.iterdir()):
            with contextlib.suppress(FileNotFoundError):  # its writer may remove it at the same time
                if path not in keep and path.lstat().st_mtime < before:
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink()
                    swept += 1
        return swept

    def path(self, block: Block) -> Path:
        return self._blocks / block.key.hex()[:2] / block.file_name

    def touch(self, block: Block) -> None:
        os.utime(self.path(block))

    def remove(self, block: Block) -> None:
        self.path(block).unlink(missing_ok=True)

    def quarantine(self, block: Block) -> None:
        self._quarantine.take(self.path(block))

    @property
    def quarantined_bytes(self) -> int:
        return self._quarantine.bytes

    def empty_quarantine(self) -> None:
        self._quarantine.clear()

    def free_bytes(self) -> int:
        return shutil.disk_usage(self._root).free

    def probe(self, size: int) -> None:
        path = self._temporary / "probe"
        try:
            with path.open("wb") as file:
                for start in range(0, size, 1 << 20):
                    file.write(bytes(min(1 << 20, size - start)))
                file.flush()
                os.fsync(file.fileno())
        finally:
            path.unlink(missing_ok=True)

"""A bounded folder for files that should have been blocks and are not: kept for a look, counted, never read again."""

import contextlib
import logging
import shutil
from collections import deque
from pathlib import Path

log = logging.getLogger(__name__)

MAX_FILES = 16
MAX_BYTES = 256 * 1024**2
SHARE = 32


def bound(quota: int) -> int:
    """Bytes that bad files may take in a folder with this quota."""
    return min(MAX_BYTES, quota // SHARE)


class Quarantine:
    """Holds the newest files, at most MAX_FILES and `max_bytes` bytes of them."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._held: deque[tuple[Path, int]] = deque()  # oldest first
        self.bytes = 0

    def open(self) -> None:
        """Count what an earlier run left; raises OSError."""
        paths = sorted(self._folder.iterdir(), key=lambda path: (path.lstat().st_mtime_ns, path.name))
        self._held = deque((path, path.lstat().st_size) for path in paths)
        self.bytes = sum(size for _, size in self._held)
        self._trim()

    def take(self, path: Path) -> None:
        """Move a file here; nothing happens if it is gone. A folder is removed: a block is never one."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
            log.debug("removed-folder path=%s", path)
            return
        target = self._folder / path.name
        try:
            size = path.lstat().st_size
            path.replace(target)
        except FileNotFoundError:
            return
        for held in [held for held in self._held if held[0] == target]:
            self._held.remove(held)
            self.bytes -= held[1]
        self._held.append((target, size))
        self.bytes += size
        self._trim()
        log.debug("quarantined path=%s bytes=%d", target, size)

    def clear(self) -> None:
        """Delete all of it; raises OSError."""
        while self._held:
            self._delete_oldest()

    def _trim(self) -> None:
        while self._held and (len(self._held) > MAX_FILES or self.bytes > self._max_bytes):
            self._delete_oldest()

    def _delete_oldest(self) -> None:
        path, size = self._held.popleft()
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.bytes -= size

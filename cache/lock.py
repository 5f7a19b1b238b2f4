"""Who may use a cache folder: one server at a time, held by the operating system's lock on a file."""

import fcntl
import os
from pathlib import Path


class FolderBusy(OSError):
    """Another server uses the folder; the text names it and the mend."""


class FolderLock:
    """Held until `close` or the end of the process, however it ends."""

    def __init__(self, path: Path) -> None:
        """Take the lock now. Raises FolderBusy if it is taken, another OSError if the file cannot be opened."""
        # O_RDWR without O_TRUNC: the text names the holder, and is changed only by who holds the lock.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._file, 64).decode(errors="replace").strip() or "another process"
            os.close(self._file)
            raise FolderBusy(
                f"the cache folder {path.parent} is in use by {holder}; stop that server or set another cache.folder"
            ) from error
        except OSError:
            os.close(self._file)
            raise
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._file)

"""The private folder that holds a running system's sockets, and the lock that says whose it is."""

import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from pomona.refusal import Refusal

LONGEST_SOCKET_NAME = len("/scheduler")
SOCKET_PATH_BYTES = 100
"""macOS allows 103, Linux 107."""


def short(folder: Path, temporary: Path | None = None) -> Path:
    """`folder`, or a stand-in for it below the temporary folder where its sockets' paths would be too long."""
    if len(os.fsencode(folder)) + LONGEST_SOCKET_NAME <= SOCKET_PATH_BYTES:
        return folder
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    return (temporary or Path(tempfile.gettempdir())) / f"pomona-{os.getuid()}" / name


class RuntimeFolder:
    """Made if need be, mode 0700, and locked until `close` or the end of the process, however it ends."""

    def __init__(self, path: Path) -> None:
        """Raises Refusal if it cannot be made or is not ours, or naming the process that has it."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.mkdir(exist_ok=True, mode=0o700)
            if path.parent.name == f"pomona-{os.getuid()}":
                _check_private(path.parent)
            _check_private(path)
            path.chmod(0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Refusal(
                f"the runtime folder {path} cannot be used ({error.strerror}); mend it, or choose another POMONA_HOME"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise Refusal(
                f"the runtime folder {path} is in use by process {holder or 'unknown'}; stop that server, "
                "or set POMONA_HOME to another place for a second one"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_private(folder: Path) -> None:
    """In a shared temporary folder somebody else may have made it first, or a link in its place."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Refusal(f"the runtime folder {folder} belongs to somebody else or is no folder; remove it")

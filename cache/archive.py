"""Stored blocks in a tar file, to be carried to another machine: `blocks/` and the name that each has in the folder.

What comes out of an archive is believed no more than what comes from a network: only plain files with the name of a
block are looked at, each is checked whole before anything of it is written, and room for it is the business of
`CacheService`, which keeps the quota.
"""

import contextlib
import itertools
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal, NamedTuple

from pomona.cache.block import Block
from pomona.cache.header import CHUNK_BYTES, DamagedBlock, check
from pomona.cache.index import Owner
from pomona.cache.messages import Abort, Commit, Reserve, Reserved
from pomona.cache.service import CacheService
from pomona.cache.shelf import StoredFile, open_block

FOLDER = "blocks/"

Progress = Callable[[int], None]
"""Is told the bytes that were just done."""


class NoArchive(ValueError):
    """The file is not what `export_blocks` writes."""


State = Literal["done", "present", "gone", "bad", "foreign", "refused"]


class Outcome(NamedTuple):
    name: str
    state: State
    reason: str = ""


def export_blocks(files: Sequence[StoredFile], target: Path, progress: Progress) -> Iterator[Outcome]:
    """Write an archive of mode 0600 under a temporary name and rename it at the end of the iteration.

    A block that vanishes meanwhile or is damaged is left out. Raises OSError, FileExistsError where such a file is
    there; then nothing is left behind.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists already")
    half = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with (
            os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as raw,
            tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for file in files:
                yield _add(archive, file)
                progress(file.block.size)
        half.rename(target)
    finally:
        half.unlink(missing_ok=True)


def _add(archive: tarfile.TarFile, file: StoredFile) -> Outcome:
    name = file.block.file_name
    opened = open_block(file)
    if opened is None:
        return Outcome(name, "gone")
    with opened:
        try:
            check(opened, file.block)
        except DamagedBlock as error:
            return Outcome(name, "bad", str(error))
        opened.seek(0)
        member = tarfile.TarInfo(FOLDER + name)
        member.size, member.mode, member.mtime = file.block.size, 0o600, int(file.used)
        archive.addfile(member, opened)
    return Outcome(name, "done")


def import_blocks(
    source: Path, service: CacheService, progress: Progress, now: Callable[[], float]
) -> Iterator[Outcome]:
    """Store the blocks of an archive in the open folder of `service`; those that are there already are passed over.

    Raises NoArchive, or OSError if the archive cannot be read.
    """
    reservations = Reservations(service, Owner("import", os.getpid()), itertools.count(1), now)
    with source.open("rb") as raw:
        try:
            with tarfile.open(fileobj=raw, mode="r:") as archive:
                for member in archive:
                    yield _take(archive, member, reservations)
                    progress(member.size)
        except tarfile.TarError as error:
            raise NoArchive(f"{source} is no archive of `pomona cache export`, or not whole: {error}") from error


class Reservations(NamedTuple):
    """A writer's side of the service, without a socket between."""

    service: CacheService
    owner: Owner
    tickets: Iterator[int]
    now: Callable[[], float]

    def reserve(self, block: Block) -> Reserved:
        question = Reserve(next(self.tickets), block.key, block.parent, block.size)
        answer = self.service.handle(self.owner, question, self.now())
        if not isinstance(answer, Reserved):
            raise TypeError(f"a reservation was answered by {type(answer).__name__}")
        return answer

    def commit(self, block: Block) -> bool:
        """False if the file could not take its place."""
        self.service.handle(self.owner, Commit(block.key), self.now())
        return block.key in self.service.index

    def abort(self, block: Block, error: OSError) -> None:
        self.service.handle(self.owner, Abort(block.key, str(error), error.errno or 0), self.now())


def _take(archive: tarfile.TarFile, member: tarfile.TarInfo, reservations: Reservations) -> Outcome:
    name = member.name
    block = Block.parse(name.removeprefix(FOLDER)) if name.startswith(FOLDER) else None
    if block is None or not member.isreg() or member.issparse() or member.size != block.size:
        return Outcome(name, "foreign", "not a file that is named and sized as a block")
    name = block.file_name
    if block.key in reservations.service.index:
        return Outcome(name, "present")
    content = archive.extractfile(member)
    if content is None:
        return Outcome(name, "foreign", "not a file")
    with contextlib.closing(content):
        try:
            check(content, block)
        except DamagedBlock as error:
            return Outcome(name, "bad", str(error))
        grant = reservations.reserve(block)
        if grant.path is None:
            return Outcome(name, "present" if grant.present else "refused", grant.reason)
        content.seek(0)
        try:
            _copy(content, Path(grant.path))
        except OSError as error:
            reservations.abort(block, error)
            return Outcome(name, "refused", str(error))
    if not reservations.commit(block):
        return Outcome(name, "refused", "the file could not take its place")
    return Outcome(name, "done")


def _copy(content: IO[bytes], path: Path) -> None:
    """To a new file of mode 0600."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        while data := content.read(CHUNK_BYTES):
            file.write(data)

"""`pomona cache verify`: every block read whole, bad ones moved aside as the cache service does."""

import sys
from typing import NamedTuple

from rich.filesize import decimal

from pomona.cache.disk import BlockFolder
from pomona.cache.header import DamagedBlock, check
from pomona.cache.shelf import Shelf, StoredFile, open_block
from pomona.cli.cache.place import Place, advance, print_json, survey, taken


class Bad(NamedTuple):
    name: str
    reason: str


def run(place: Place, dry_run: bool, as_json: bool) -> int:
    """Exit code 1 if a block is bad. Raises Refusal."""
    shelf = survey(place)  # before the folder is taken, which already moves what is no block
    if dry_run:
        checked, bad = _verify(shelf, None)
    else:
        with taken(place) as files:
            checked, bad = _verify(shelf, files)
    if as_json:
        found = [one._asdict() for one in bad]
        print_json({"folder": str(place.folder), "checked": checked, "bad": found, "moved": not dry_run and bool(bad)})
        return 1 if bad else 0
    for one in bad:
        print(f"pomona: {one.name}: {one.reason}", file=sys.stderr)
    whole = f"{checked} blocks, {decimal(shelf.bytes)}"
    if not bad:
        print(f"{whole}: all of them are whole")
    else:
        print(
            f"{whole}: {len(bad)} bad, " + ("left where they are" if dry_run else f"moved to {place.folder}/quarantine")
        )
    return 1 if bad else 0


def _verify(shelf: Shelf, files: BlockFolder | None) -> tuple[int, list[Bad]]:
    """The number of blocks that were read, and what is bad; `files` takes it to quarantine."""
    bad = [Bad(path.name, "is no block by its name, its kind or its size") for path in shelf.strangers]
    checked = 0
    with advance(shelf.bytes, "verifying") as done:
        for file in shelf.files.values():
            reason = _fault(file)
            checked += reason is not None
            if reason:
                bad.append(Bad(file.block.file_name, reason))
                if files is not None:
                    files.quarantine(file.block)
            done(file.block.size)
    return checked, bad


def _fault(file: StoredFile) -> str | None:
    """What is wrong with a block, an empty text if nothing is; None if it is gone."""
    try:
        opened = open_block(file)
        if opened is None:
            return None
        with opened:
            check(opened, file.block)
    except DamagedBlock as error:
        return str(error)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return ""

"""`pomona cache stats` and `pomona cache list`: tables for people, JSON for programs."""

import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from pomona.cache.header import DamagedBlock, Header, read_header
from pomona.cache.messages import BlockKey
from pomona.cache.shelf import Shelf, StoredFile, open_block
from pomona.cli.cache.place import Place, print_json, survey

WIDTH = 240
"""Columns of a table that goes into a file or a pipe."""
SHORT = 12
"""Digits of a key that people are shown; more than enough to name a block."""


class Root(NamedTuple):
    """What is stored behind one root: one model with its settings, one tenant."""

    key: BlockKey
    blocks: int
    chains: int
    """Blocks that nothing is stored behind."""
    tokens: int
    bytes: int
    dtypes: tuple[str, ...]
    used: float


def show_stats(place: Place, as_json: bool) -> int:
    shelf = survey(place)
    roots = _roots(shelf, _headers(shelf))
    if as_json:
        print_json(
            {
                "folder": str(place.folder),
                "blocks": len(shelf.files),
                "bytes": shelf.bytes,
                "max_bytes": place.config.max_bytes,
                "quarantined": shelf.quarantined,
                "quarantined_bytes": shelf.quarantined_bytes,
                "strangers": len(shelf.strangers),
                "free_bytes": shelf.free_bytes,
                "min_free_bytes": place.config.min_free_bytes,
                "roots": [{**root._asdict(), "key": root.key.hex(), "dtypes": list(root.dtypes)} for root in roots],
            }
        )
        return 0
    console = _console()
    share = shelf.bytes / place.config.max_bytes
    for name, text in (
        ("folder", str(place.folder)),
        ("blocks", str(len(shelf.files))),
        ("stored", f"{decimal(shelf.bytes)}, {share:.0%} of the quota of {decimal(place.config.max_bytes)}"),
        ("quarantine", f"{shelf.quarantined} files, {decimal(shelf.quarantined_bytes)}"),
        ("free disk", f"{decimal(shelf.free_bytes)}; below {decimal(place.config.min_free_bytes)} nothing is stored"),
    ):
        console.print(f"{name:<12}{text}", markup=False, soft_wrap=True)
    if shelf.strangers:
        console.print(f"{'no blocks':<12}{len(shelf.strangers)} files; see: pomona cache verify --dry-run")
    if roots:
        console.print(_root_table(roots))
    return 0


def show_blocks(place: Place, as_json: bool) -> int:
    shelf = survey(place)
    headers = _headers(shelf)
    if as_json:
        print_json({"folder": str(place.folder), "blocks": [_facts(shelf, file, headers) for file in _recent(shelf)]})
        return 0
    console = _console()
    if not shelf.files:
        console.print(f"no blocks are stored in {place.folder}", markup=False, soft_wrap=True)
        return 0
    console.print(_block_table(shelf, headers))
    return 0


def _recent(shelf: Shelf) -> tuple[StoredFile, ...]:
    return tuple(shelf.files.values())


def _headers(shelf: Shelf) -> dict[BlockKey, Header]:
    """Of the files that are still there and can be read; the others are the business of `verify`."""
    headers: dict[BlockKey, Header] = {}
    for key, file in shelf.files.items():
        try:
            opened = open_block(file)
            if opened is not None:
                with opened:
                    headers[key] = read_header(opened, file.block)
        except (DamagedBlock, OSError):
            continue
    return headers


def _roots(shelf: Shelf, headers: Mapping[BlockKey, Header]) -> list[Root]:
    """Last used first."""
    parents = {file.block.parent for file in shelf.files.values()}
    roots: dict[BlockKey, Root] = {}
    for key, file in shelf.files.items():
        root = shelf.lineage(key)[0].block.parent
        header = headers.get(key)
        known = roots.get(root, Root(root, 0, 0, 0, 0, (), file.used))
        roots[root] = known._replace(
            blocks=known.blocks + 1,
            chains=known.chains + (key not in parents),
            tokens=known.tokens + (header.tokens if header is not None else 0),
            bytes=known.bytes + file.block.size,
            dtypes=tuple(sorted({*known.dtypes, *(header.dtypes if header is not None else ())})),
            used=max(known.used, file.used),
        )
    return sorted(roots.values(), key=lambda root: root.used, reverse=True)


def _facts(shelf: Shelf, file: StoredFile, headers: Mapping[BlockKey, Header]) -> dict[str, object]:
    header = headers.get(file.block.key)
    return {
        "key": file.block.key.hex(),
        "parent": file.block.parent.hex(),
        "root": shelf.lineage(file.block.key)[0].block.parent.hex(),
        "tokens": header.tokens if header is not None else None,
        "end": _end(shelf, file, headers),
        "bytes": file.block.size,
        "made": file.made,
        "used": file.used,
    }


def _end(shelf: Shelf, file: StoredFile, headers: Mapping[BlockKey, Header]) -> int | None:
    """Tokens from the beginning of the prompt to the end of the block; None where its header cannot be read."""
    header = headers.get(file.block.key)
    if header is None:
        return None
    return header.end or header.tokens * len(shelf.lineage(file.block.key))


def _root_table(roots: list[Root]) -> Table:
    table = _table("ROOT", "BLOCKS", "CHAINS", "TOKENS", "SIZE", "LAST USE")
    table.add_column("DTYPE")
    now = time.time()
    for root in roots:
        counts = (str(root.blocks), str(root.chains), str(root.tokens))
        row = (root.key.hex()[:SHORT], *counts, decimal(root.bytes), ago(now - root.used), ", ".join(root.dtypes))
        table.add_row(*row)
    return table


def _block_table(shelf: Shelf, headers: Mapping[BlockKey, Header]) -> Table:
    has_age = any(file.made is not None for file in shelf.files.values())
    table = _table("KEY", "PARENT", "TOKENS", "END", "SIZE", *(("AGE",) if has_age else ()), "LAST USE")
    now = time.time()
    for key, file in shelf.files.items():
        header, end = headers.get(key), _end(shelf, file, headers)
        age = (ago(now - file.made) if file.made is not None else "?",) if has_age else ()
        table.add_row(
            key.hex()[:SHORT],
            file.block.parent.hex()[:SHORT],
            str(header.tokens) if header is not None else "?",
            str(end) if end is not None else "?",
            decimal(file.block.size),
            *age,
            ago(now - file.used),
        )
    return table


def _table(name: str, *numbers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(name, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)


def ago(seconds: float) -> str:
    """An age in its largest unit: `3 min`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"

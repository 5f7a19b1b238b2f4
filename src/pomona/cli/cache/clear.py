"""`pomona cache clear`: an empty folder, whoever filled it."""

import typer
from rich.filesize import decimal

from pomona.cache.shelf import look
from pomona.cli.cache.place import Place, print_json, taken


def run(place: Place, yes: bool, as_json: bool) -> int:
    """Raises Refusal if a server uses the folder, and typer.Abort if the answer is no."""
    with taken(place) as files:
        shelf = look(place.folder)
        what = f"{len(shelf.files)} stored blocks, {decimal(shelf.bytes)}"
        if not yes:
            typer.confirm(f"delete {what}, in {place.folder}?", abort=True, err=True)
        for file in shelf.files.values():
            files.remove(file.block)
        files.empty_quarantine()
    if as_json:
        print_json({"folder": str(place.folder), "blocks": len(shelf.files), "bytes": shelf.bytes})
    else:
        print(f"deleted {what}, from {place.folder}")
    return 0

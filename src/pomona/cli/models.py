"""`pomona models`: what is in the model folder, and how more gets there."""

import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from pomona.cli.transfer import transfer
from pomona.home import Home
from pomona.workers.models.library import ModelFolder, ModelLibrary

WIDTH = 240
"""Columns of a table that goes into a file or a pipe."""


def show() -> int:
    """Whole models on stdout, damaged ones on stderr; exit code 1 if there are damaged ones."""
    library = ModelLibrary(Home.resolve().models)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    found, damaged = library.list(), library.damaged()
    if found:
        console.print(_table(found))
    elif not damaged:
        console.print(f"no models in {library.folder}; `pomona serve` fetches the default one", soft_wrap=True)
    for error in damaged:
        print(f"pomona: {error}", file=sys.stderr)
    return 1 if damaged else 0


def bring(source: str, model_id: str | None) -> int:
    """Imports `source` and says under which id it is served; raises Refusal."""
    library = ModelLibrary(Home.resolve().models)
    console = Console(highlight=False)
    with transfer(console) as report:
        model = library.add(Path(source).expanduser(), id=model_id, progress=report)
    console.print(f"{model.id} is in {model.path}; serve it: pomona serve {model.id}", markup=False, soft_wrap=True)
    return 0


def _table(models: tuple[ModelFolder, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("MODEL", no_wrap=True, overflow="fold")
    for heading in ("SIZE", "CONTEXT"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("ARCHITECTURE")
    table.add_column("SOURCE", overflow="fold")
    for model in models:
        table.add_row(model.id, decimal(model.bytes), str(model.context), model.architecture, model.source)
    return table

"""The progress of a download or an import: a bar in a terminal, one line for each stage in a log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

Report = Callable[[int, int, str], None]
"""Bytes done, bytes in all, what is being done."""


@contextmanager
def transfer(console: Console) -> Iterator[Report]:
    if not console.is_terminal:
        yield _Stages(console)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", visible=False)

        def report(done: int, total: int, text: str) -> None:
            bars.update(task, completed=done, total=total, description=text, visible=True)

        yield report


class _Stages:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""

    def __call__(self, done: int, total: int, text: str) -> None:
        if text != self._stage:
            self._stage = text
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

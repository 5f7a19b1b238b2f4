"""What a person sees while a benchmark runs: on standard error, so that standard output is JSON alone."""

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pomona.cli.bench.answer import Failure, Outcome
from pomona.cli.bench.load import Done


class BenchProgress:
    """One line for each step, one bar for each load."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def step(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    @contextlib.contextmanager
    def watch(self, label: str, total: int) -> Iterator[Done]:
        """A bar over `total` requests; call what it yields with each outcome."""
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=self._console) as bars:
            task = bars.add_task(label, total=total)
            failed = 0

            def done(outcome: Outcome) -> None:
                nonlocal failed
                if isinstance(outcome, Failure):
                    failed += 1
                description = f"{label} ({failed} failed)" if failed else label
                bars.update(task, advance=1, description=description)

            yield done

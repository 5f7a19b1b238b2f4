"""One load measured from the command line: progress while it runs, figures at the end or at an interrupt."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from pomona.cli.bench.answer import Outcome
from pomona.cli.bench.load import Load, Target, run_load
from pomona.cli.bench.metrics import LoadResult, summarise
from pomona.cli.bench.progress import BenchProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A load that was measured: its figures, and all that they were computed from."""

    result: LoadResult
    outcomes: tuple[Outcome, ...]


class Interrupted(Exception):
    """The user stopped a load; `outcomes` are the requests that had ended."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        super().__init__("interrupted")
        self.outcomes = tuple(outcomes)


def measure(target: Target, load: Load, label: str, progress: BenchProgress) -> LoadResult:
    """Runs one load; raises `Interrupted` on Ctrl-C."""
    return summarise(outcomes_of(target, load, label, progress), load.concurrency)


def outcomes_of(target: Target, load: Load, label: str, progress: BenchProgress) -> list[Outcome]:
    """As `measure`, with every outcome kept."""
    outcomes: list[Outcome] = []
    try:
        with progress.watch(label, load.requests) as advance:

            def done(outcome: Outcome) -> None:
                outcomes.append(outcome)
                advance(outcome)

            asyncio.run(run_load(target, load, done))
    except KeyboardInterrupt:
        raise Interrupted(outcomes) from None
    return outcomes


@contextlib.contextmanager
def sigterm_is_interrupt() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP act like Ctrl-C, so that servers under test are ended then too."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    kinds = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(kind, interrupt) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)

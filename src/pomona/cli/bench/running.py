"""`bench serve`: one load after another against a server that runs already."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pomona.cli.bench.load import Load, Target
from pomona.cli.bench.measure import Interrupted, measure
from pomona.cli.bench.metrics import LoadResult
from pomona.cli.bench.plan import WARM_UP_TOKENS
from pomona.cli.bench.progress import BenchProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A load and the one that warms the server up for it."""

    warm_up: Load
    load: Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    loads: tuple[LoadResult, ...]
    interrupted: bool
    """The last load may then be a part, and says so itself; the ones after it are missing."""

    @property
    def errors(self) -> int:
        return sum(load.errors for load in self.loads)


def steps(load: Load, levels: Sequence[int], requests: int | None) -> Iterator[Step]:
    """`load` at each level of concurrency, with prompts of its own for each and `requests` or two a stream."""
    for level in levels:
        number = requests if requests is not None else max(4, 2 * level)
        yield Step(
            warm_up=_at(load, level, requests=level, tokens=WARM_UP_TOKENS, purpose="warm-up"),
            load=_at(load, level, requests=number, tokens=load.max_tokens, purpose="load"),
        )


def _at(load: Load, level: int, *, requests: int, tokens: int, purpose: str) -> Load:
    return Load(
        concurrency=level,
        requests=requests,
        max_tokens=tokens,
        prompt_words=load.prompt_words,
        temperature=load.temperature,
        seed=f"{load.seed} {purpose} {level}",
        request_timeout_s=load.request_timeout_s,
    )


def measure_running(target: Target, todo: Iterator[Step], progress: BenchProgress) -> Measurements:
    """Runs the steps in order; an interrupt ends them and keeps what there is."""
    loads: list[LoadResult] = []
    try:
        for step in todo:
            label = f"streams {step.load.concurrency}"
            measure(target, step.warm_up, f"{label}, warm-up", progress)
            try:
                loads.append(measure(target, step.load, label, progress))
            except Interrupted as stop:
                if stop.partial is not None:
                    loads.append(stop.partial)
                raise
    except (Interrupted, KeyboardInterrupt):
        return Measurements(loads=tuple(loads), interrupted=True)
    return Measurements(loads=tuple(loads), interrupted=False)

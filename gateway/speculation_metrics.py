"""What speculation did, as Prometheus sees it: by model and worker, method and depth."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, Metric

from pomona.scheduler.messages import WorkerSnapshot
from pomona.workers.messages import MethodFigures

BY_DEPTH: tuple[tuple[str, str, Callable[[MethodFigures], tuple[int, ...]]], ...] = (
    ("tested", "Guesses whose predecessors were all accepted.", lambda figures: figures.tested),
    ("accepted", "Guesses that were accepted; their share of the tested ones is the acceptance.", lambda f: f.accepted),
)
BY_METHOD: tuple[tuple[str, str, Callable[[MethodFigures], float]], ...] = (
    ("unused", "Guesses behind a refused one, which were computed in vain.", lambda figures: figures.unused),
    ("propose_seconds", "Of guessing.", lambda figures: figures.propose_seconds),
)


def speculation_metrics(workers: Sequence[WorkerSnapshot]) -> Iterator[Metric]:
    """Counters since each worker's start; the depth of the first guess of a step is 1."""
    for name, text, by_depth in BY_DEPTH:
        family = _family(name, text, "method", "depth")
        for worker in workers:
            for method, figures in worker.stats.speculation.items():
                for depth, count in enumerate(by_depth(figures), start=1):
                    family.add_metric((worker.model, worker.name, method, str(depth)), count)
        yield family
    for name, text, of_method in BY_METHOD:
        family = _family(name, text, "method")
        for worker in workers:
            for method, figures in worker.stats.speculation.items():
                family.add_metric((worker.model, worker.name, method), of_method(figures))
        yield family


def _family(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"pomona_worker_speculation_{name}", text, labels=("model", "worker", *labels))

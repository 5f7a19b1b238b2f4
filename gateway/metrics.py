"""Prometheus metrics: what the gateway measures itself, and the scheduler's counters at the moment of the scrape."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pomona.gateway.speculation_metrics import speculation_metrics
from pomona.runtime.tally import Tally
from pomona.scheduler.messages import QUEUE_WAIT_BUCKETS, Stats
from pomona.workers.messages import STEP_BUCKETS, WIDTH_BUCKETS, WorkerStats

TTFT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
GAP_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.5, 5, 10, 30)
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)

WORKER_PARTS = ("decode_times", "prefill_times", "widths", "speculation")
"""Fields that are more than a number."""
WORKER_FIELDS = tuple(field for field in WorkerStats.__annotations__ if field not in WORKER_PARTS)
WORKER_GAUGES = ("running", "prefilling", "waiting", "kv_bytes", "memory_bytes", "ram_entries", "ram_bytes")


class Metrics:
    """One registry a gateway; labels hold routes and model ids that exist, never what a client made up."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "pomona_gateway_http_requests",
            "HTTP requests that ended.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.in_flight = Gauge("pomona_gateway_http_in_flight", "HTTP requests being answered.", registry=self.registry)
        self.duration = Histogram(
            "pomona_gateway_http_duration_seconds",
            "From the head of the request to the last byte of the answer.",
            ("route",),
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )
        self.ttft = Histogram(
            "pomona_gateway_ttft_seconds",
            "From the submitted request to its first tokens.",
            ("model",),
            buckets=TTFT_BUCKETS,
            registry=self.registry,
        )
        self.gap = Histogram(
            "pomona_gateway_inter_token_seconds",
            "Between two token events of one answer.",
            ("model",),
            buckets=GAP_BUCKETS,
            registry=self.registry,
        )
        self.disconnects = Counter(
            "pomona_gateway_disconnects", "Clients that left before their answer ended.", registry=self.registry
        )

    def render(self, stats: Stats | None, *others: Collector) -> bytes:
        """The exposition text; `stats` is None while the scheduler does not answer."""
        scrape = CollectorRegistry()
        for collector in (SchedulerCollector(stats), *others):
            scrape.register(collector)
        return generate_latest(self.registry) + generate_latest(scrape)


class SchedulerCollector(Collector):
    def __init__(self, stats: Stats | None) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "pomona_scheduler_up", "Whether the scheduler answered this scrape.", float(self._stats is not None)
        )
        if self._stats is not None:
            yield from _scheduler(self._stats)
            yield from _workers(self._stats)


def _scheduler(stats: Stats) -> Iterator[Metric]:
    yield GaugeMetricFamily("pomona_scheduler_waiting", "Requests that wait for a worker.", stats.waiting)
    yield GaugeMetricFamily("pomona_scheduler_running", "Requests that a worker holds.", stats.running)
    for name, text, value in (
        ("submitted", "Requests taken in.", stats.submitted),
        ("finished", "Requests that ended by themselves.", stats.finished),
        ("cancelled", "Requests that were cancelled.", stats.cancelled),
        ("resumed", "Requests that went on after their worker was lost.", stats.resumed),
        ("worker_deaths", "Workers that died with work.", stats.worker_deaths),
        ("preempted", "Requests that made room for a more urgent one, each time.", stats.preempted),
    ):
        yield CounterMetricFamily(f"pomona_scheduler_{name}", text, value)
    refused = CounterMetricFamily("pomona_scheduler_refused", "Requests refused.", labels=("reason",))
    for kind, count in stats.refused.items():
        refused.add_metric((kind,), count)
    yield refused
    waits = HistogramMetricFamily(
        "pomona_scheduler_queue_wait_seconds",
        "From admission, or the loss of a place, to a place in a worker.",
        labels=(),
    )
    _add(waits, (), QUEUE_WAIT_BUCKETS, stats.waits)
    yield waits


def _workers(stats: Stats) -> Iterator[Metric]:
    silent = GaugeMetricFamily(
        "pomona_worker_silent_seconds", "Since the last word of a worker that has work.", labels=("model", "worker")
    )
    for worker in stats.workers:
        silent.add_metric((worker.model, worker.name), worker.silent_s)
    yield silent
    for name, text in (
        ("kv_reserved", "KV bytes set aside for a worker's requests."),
        ("kv_capacity", "KV bytes that they may take together; 0 is no bound."),
    ):
        bytes_of = GaugeMetricFamily(f"pomona_worker_{name}_bytes", text, labels=("model", "worker"))
        for worker in stats.workers:
            bytes_of.add_metric((worker.model, worker.name), getattr(worker, name))
        yield bytes_of
    steps = HistogramMetricFamily(
        "pomona_worker_step_seconds", "Of a worker's forwards.", labels=("model", "worker", "phase")
    )
    widths = HistogramMetricFamily("pomona_worker_batch_width", "Rows of a decode step.", labels=("model", "worker"))
    for worker in stats.workers:
        _add(steps, (worker.model, worker.name, "decode"), STEP_BUCKETS, worker.stats.decode_times)
        _add(steps, (worker.model, worker.name, "prefill"), STEP_BUCKETS, worker.stats.prefill_times)
        _add(widths, (worker.model, worker.name), WIDTH_BUCKETS, worker.stats.widths)
    yield steps
    yield widths
    yield from speculation_metrics(stats.workers)
    for field in WORKER_FIELDS:
        name, text = f"pomona_worker_{field}", f"{field.replace('_', ' ')} of a worker.".capitalize()
        labels = ("model", "worker")
        family: GaugeMetricFamily | CounterMetricFamily
        if field in WORKER_GAUGES:
            family = GaugeMetricFamily(name, text, labels=labels)
        else:
            family = CounterMetricFamily(name, text, labels=labels)
        for worker in stats.workers:
            family.add_metric((worker.model, worker.name), getattr(worker.stats, field))
        yield family


def _add(family: HistogramMetricFamily, labels: Sequence[str], bounds: Sequence[float], tally: Tally) -> None:
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    buckets = list(zip(names, accumulate(tally.counts), strict=True))
    family.add_metric(labels, buckets, sum_value=tally.total)

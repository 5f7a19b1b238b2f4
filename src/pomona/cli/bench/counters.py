"""What Pomona's worker reports of its steps: the difference of its counters between two scrapes of /metrics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families

from pomona.cli.bench.problem import BenchError

STEPS = "pomona_worker_decode_steps_total"
SECONDS = "pomona_worker_decode_seconds_total"
STORED = "pomona_worker_stored_blocks_total"
SCRAPE_S = 10.0
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounters:
    """Since the start of the workers, all of them together."""

    steps: float
    seconds: float

    def step_s(self, before: "StepCounters") -> float | None:
        """Mean seconds of a decode step since `before`; None if there was none."""
        steps = self.steps - before.steps
        return (self.seconds - before.seconds) / steps if steps > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCounters:
    """What decoding did since the start of the workers, or between two moments; all workers together."""

    steps: float = 0.0
    rows: float = 0.0
    """Sum over the steps."""
    seconds: float = 0.0
    verify_steps: float = 0.0
    """Steps that verified guesses; they are among `steps`, and their seconds among `seconds`."""
    verify_seconds: float = 0.0
    saved: float = 0.0
    """Tokens that needed no step of their own."""
    propose_seconds: float = 0.0

    def __add__(self, other: "DecodeCounters") -> "DecodeCounters":
        return DecodeCounters(**{name: getattr(self, name) + getattr(other, name) for name in DECODE})

    def __sub__(self, other: "DecodeCounters") -> "DecodeCounters":
        return DecodeCounters(**{name: getattr(self, name) - getattr(other, name) for name in DECODE})


DECODE = {
    "steps": STEPS,
    "rows": "pomona_worker_decode_rows_total",
    "seconds": SECONDS,
    "verify_steps": "pomona_worker_verify_steps_total",
    "verify_seconds": "pomona_worker_verify_seconds_total",
    "saved": "pomona_worker_saved_forwards_total",
    "propose_seconds": "pomona_worker_speculation_propose_seconds_total",
}
"""Fields of `DecodeCounters` and the metrics that they are read from."""


def read_decode(text: str) -> DecodeCounters:
    """As `read_counters`."""
    return DecodeCounters(**{field: sum_of(text, name) for field, name in DECODE.items()})


def read_counters(text: str) -> StepCounters:
    """From the exposition text; counters that are not there count as 0."""
    return StepCounters(steps=sum_of(text, STEPS), seconds=sum_of(text, SECONDS))


def sum_of(text: str, name: str) -> float:
    """All samples of this name together, whatever their labels."""
    families = text_string_to_metric_families(text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def scrape(server: str) -> StepCounters:
    """`server` is an address without a path; raises BenchError if it gives no metrics."""
    return _scraped(server, read_counters)


def scrape_decode(server: str) -> DecodeCounters:
    """As `scrape`."""
    return _scraped(server, read_decode)


def total(server: str, name: str) -> float:
    """One metric, all of its samples together; else as `scrape`."""
    return _scraped(server, lambda text: sum_of(text, name))


def _scraped(server: str, read: Callable[[str], Read]) -> Read:
    try:
        response = httpx.get(f"{server}/metrics", timeout=SCRAPE_S, trust_env=False).raise_for_status()
        return read(response.text)
    except (httpx.HTTPError, ValueError) as error:
        raise BenchError(f"{server}/metrics gives no counters ({error})") from error

"""The step time that Pomona's worker reports: the difference of its counters between two scrapes of /metrics."""

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


def total(server: str, name: str) -> float:
    """One metric, all of its samples together; else as `scrape`."""
    return _scraped(server, lambda text: sum_of(text, name))


def _scraped(server: str, read: Callable[[str], Read]) -> Read:
    try:
        response = httpx.get(f"{server}/metrics", timeout=SCRAPE_S, trust_env=False).raise_for_status()
        return read(response.text)
    except (httpx.HTTPError, ValueError) as error:
        raise BenchError(f"{server}/metrics gives no counters ({error})") from error

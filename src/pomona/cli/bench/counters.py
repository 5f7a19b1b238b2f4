"""The step time that Pomona's worker reports: the difference of its counters between two scrapes of /metrics."""

from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from pomona.cli.bench.problem import BenchError

STEPS = "pomona_worker_decode_steps_total"
SECONDS = "pomona_worker_decode_seconds_total"
SCRAPE_S = 10.0


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
    found = {STEPS: 0.0, SECONDS: 0.0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in found:
                found[sample.name] += sample.value
    return StepCounters(steps=found[STEPS], seconds=found[SECONDS])


def scrape(server: str) -> StepCounters:
    """`server` is an address without a path; raises BenchError if it gives no metrics."""
    try:
        response = httpx.get(f"{server}/metrics", timeout=SCRAPE_S, trust_env=False).raise_for_status()
        return read_counters(response.text)
    except (httpx.HTTPError, ValueError) as error:
        raise BenchError(f"{server}/metrics gives no counters ({error})") from error

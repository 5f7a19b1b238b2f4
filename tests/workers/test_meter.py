import pytest

from pomona.config import Method
from pomona.runtime.tally import Tally
from pomona.workers.messages import MethodFigures, WorkerStats
from pomona.workers.meter import Meter
from pomona.workers.tiers import TierFigures

TIERS = TierFigures(1, 2, 3, 4, 5, 6, 7, 8.0, 9.0, 10.0)

FIGURES: dict[Method, MethodFigures] = {"ngram": MethodFigures(tested=(3,), accepted=(2,))}


def snapshot(meter: Meter) -> WorkerStats:
    return meter.snapshot(
        running=1, prefilling=2, waiting=3, kv_bytes=4, stored=5, dropped=6, tiers=TIERS, speculation=FIGURES
    )


def test_counters_add_up_and_gauges_are_what_they_are_told() -> None:
    meter = Meter()
    meter.decoded(2, 0.5)
    meter.decoded(3, 0.25)
    meter.committed(2, 0)
    meter.committed(3, 2)
    meter.verified(0.5)
    meter.verified(0.25)
    meter.restored(7)
    meter.prefilled(20, 32, 0.5)
    meter.prefilled(30, 30, 0.5)
    stats = snapshot(meter)
    assert stats == WorkerStats(
        running=1,
        prefilling=2,
        waiting=3,
        prompt_tokens=50,
        cached_tokens=7,
        output_tokens=5,
        decode_steps=2,
        decode_rows=5,
        decode_seconds=0.75,
        prefill_seconds=1.0,
        kv_bytes=4,
        memory_bytes=stats.memory_bytes,
        stored_blocks=5,
        dropped_blocks=6,
        decode_times=Tally((*[0] * 8, 2, *[0] * 5), 0.75),
        prefill_times=Tally((*[0] * 8, 2, *[0] * 5), 1.0),
        widths=Tally((0, 1, 1, *[0] * 6), 5.0),
        ram_hits=1,
        ram_tokens=2,
        ram_entries=3,
        ram_bytes=4,
        disk_hits=5,
        disk_tokens=6,
        tier_misses=7,
        restore_seconds=8.0,
        store_seconds=9.0,
        write_seconds=10.0,
        speculation=FIGURES,
        verify_steps=2,
        verify_seconds=0.75,
        saved_forwards=2,
    )
    assert stats.memory_bytes > 0


def test_the_cost_of_a_forward_is_that_of_all_it_computed() -> None:
    meter = Meter()
    meter.prefilled(20, 32, 0.32)
    assert meter.prefill_cost.line() == (0.0, pytest.approx(0.01))


def test_an_empty_forward_says_nothing_of_the_cost() -> None:
    meter = Meter()
    untouched = meter.prefill_cost.line()
    meter.prefilled(0, 0, 0.1)
    assert meter.prefill_cost.line() == untouched


def test_forgetting_counts_keeps_the_cost() -> None:
    meter = Meter()
    meter.prefilled(30, 30, 0.6)
    meter.reset()
    assert meter.prefill_cost.line() == (0.0, pytest.approx(0.02))
    meter.decoded(0, 0.1)
    stats = snapshot(meter)
    assert stats.prompt_tokens == 0
    assert (sum(stats.prefill_times.counts), sum(stats.decode_times.counts), sum(stats.widths.counts)) == (0, 1, 0)

import pytest

from pomona.workers.messages import WorkerStats
from pomona.workers.meter import Meter


def snapshot(meter: Meter) -> WorkerStats:
    return meter.snapshot(running=1, prefilling=2, waiting=3, kv_bytes=4, stored=5, dropped=6)


def test_counters_add_up_and_gauges_are_what_they_are_told() -> None:
    meter = Meter()
    meter.decoded(2, 0.5)
    meter.decoded(3, 0.25)
    meter.committed(2)
    meter.committed(3)
    meter.restored(7)
    meter.prefilled(20, 0.5)
    meter.prefilled(30, 0.5)
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
    )
    assert stats.memory_bytes > 0


def test_the_prefill_rate_follows_the_last_chunks() -> None:
    meter = Meter()
    assert meter.prefill_rate == 100
    meter.prefilled(30, 0.1)
    assert meter.prefill_rate == pytest.approx(200)
    for _ in range(20):
        meter.prefilled(50, 1.0)
    assert meter.prefill_rate == pytest.approx(50, rel=1e-3)


def test_an_empty_chunk_says_nothing_of_the_rate() -> None:
    meter = Meter()
    meter.prefilled(0, 0.1)
    meter.prefilled(5, 0.0)
    assert meter.prefill_rate == 100


def test_forgetting_counts_keeps_the_rate() -> None:
    meter = Meter()
    meter.prefilled(30, 0.1)
    meter.reset()
    assert meter.prefill_rate == pytest.approx(200)
    assert snapshot(meter).prompt_tokens == 0

from pomona.workers.messages import WorkerStats
from pomona.workers.tiers import TierCounts, TierFigures


def test_hits_are_counted_by_the_tier_that_gave_the_tokens() -> None:
    counts = TierCounts()
    counts.restored(30, 0, 0.5)
    counts.restored(10, 0, 0.25)
    counts.restored(0, 64, 1.0)
    counts.restored(0, 0, 0.125)
    counts.stored(0.5)
    counts.stored(0.25)
    assert counts.figures(entries=2, nbytes=100, write_seconds=3.0) == TierFigures(
        ram_hits=2,
        ram_tokens=40,
        ram_entries=2,
        ram_bytes=100,
        disk_hits=1,
        disk_tokens=64,
        tier_misses=1,
        restore_seconds=1.875,
        store_seconds=0.75,
        write_seconds=3.0,
    )


def test_counting_anew_begins_at_nothing() -> None:
    counts = TierCounts()
    counts.restored(30, 0, 0.5)
    counts.stored(0.5)
    counts.reset()
    assert counts.figures(0, 0, 0.0) == TierFigures()


def test_every_figure_has_its_place_in_the_workers_stats() -> None:
    assert set(TierFigures._fields) <= set(WorkerStats.__annotations__)

"""What the tiers of the prefix cache do for one worker, counted where it happens."""

from typing import NamedTuple


class TierFigures(NamedTuple):
    """Counters since the worker's start, and gauges of its RAM tier; the names are those of `WorkerStats`."""

    ram_hits: int = 0
    ram_tokens: int = 0
    ram_entries: int = 0
    ram_bytes: int = 0
    disk_hits: int = 0
    disk_tokens: int = 0
    tier_misses: int = 0
    restore_seconds: float = 0.0
    store_seconds: float = 0.0
    write_seconds: float = 0.0


class TierCounts:
    """Used by the engine's thread alone."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._figures = TierFigures()

    def restored(self, in_memory: int, on_disk: int, seconds: float) -> None:
        """One look for a prefix took `seconds`, and this many tokens came from one of the tiers; none: a miss."""
        old = self._figures
        self._figures = old._replace(
            ram_hits=old.ram_hits + bool(in_memory),
            ram_tokens=old.ram_tokens + in_memory,
            disk_hits=old.disk_hits + bool(on_disk),
            disk_tokens=old.disk_tokens + on_disk,
            tier_misses=old.tier_misses + (not in_memory and not on_disk),
            restore_seconds=old.restore_seconds + seconds,
        )

    def stored(self, seconds: float) -> None:
        """The engine copied a block for the writer, which took it `seconds`."""
        self._figures = self._figures._replace(store_seconds=self._figures.store_seconds + seconds)

    def figures(self, entries: int, nbytes: int, write_seconds: float) -> TierFigures:
        """With what the RAM tier holds now, and the seconds of the writer's thread."""
        return self._figures._replace(ram_entries=entries, ram_bytes=nbytes, write_seconds=write_seconds)

"""What a worker counts."""

from pomona.config import Method
from pomona.runtime.mailbox import now
from pomona.runtime.tally import Histogram
from pomona.runtime.wire import replace
from pomona.workers import device
from pomona.workers.cost import PrefillCost
from pomona.workers.messages import STEP_BUCKETS, WIDTH_BUCKETS, MethodFigures, WorkerStats
from pomona.workers.tiers import TierFigures

MEMORY_EVERY_S = 1.0
"""Seconds between two looks at the memory, which cost more than the rest of a step's counting."""


class Meter:
    """Counters since the worker's start, and the measured cost of prefill that budgets are computed from."""

    def __init__(self) -> None:
        self.reset()
        self.prefill_cost = PrefillCost()
        self._memory = 0
        self._memory_read = -MEMORY_EVERY_S

    def reset(self) -> None:
        self._stats = WorkerStats()
        self._decode_times = Histogram(STEP_BUCKETS)
        self._prefill_times = Histogram(STEP_BUCKETS)
        self._widths = Histogram(WIDTH_BUCKETS)

    def decoded(self, rows: int, seconds: float) -> None:
        stats = self._stats
        self._stats = replace(
            stats,
            decode_steps=stats.decode_steps + 1,
            decode_rows=stats.decode_rows + rows,
            decode_seconds=stats.decode_seconds + seconds,
        )
        self._decode_times.note(seconds)
        if rows:
            self._widths.note(rows)

    def verified(self, seconds: float) -> None:
        """The forward of a step that verified drafts took so long."""
        stats = self._stats
        self._stats = replace(stats, verify_steps=stats.verify_steps + 1, verify_seconds=stats.verify_seconds + seconds)

    def committed(self, tokens: int, drafted: int) -> None:
        """Output tokens, of which the first `drafted` were drafts."""
        stats = self._stats
        self._stats = replace(
            stats, output_tokens=stats.output_tokens + tokens, saved_forwards=stats.saved_forwards + drafted
        )

    def restored(self, tokens: int) -> None:
        self._stats = replace(self._stats, cached_tokens=self._stats.cached_tokens + tokens)

    def prefilled(self, tokens: int, padded: int, seconds: float, depth: int = 0) -> None:
        """One forward computed `tokens` prompt tokens, `padded` with its padding, behind `depth` earlier ones."""
        stats = self._stats
        self._stats = replace(
            stats, prompt_tokens=stats.prompt_tokens + tokens, prefill_seconds=stats.prefill_seconds + seconds
        )
        self._prefill_times.note(seconds)
        if padded:
            self.prefill_cost.observe(padded, seconds, depth)

    def _memory_bytes(self) -> int:
        if now() - self._memory_read >= MEMORY_EVERY_S:
            self._memory, self._memory_read = device.memory_bytes(), now()
        return self._memory

    def snapshot(
        self,
        *,
        running: int,
        prefilling: int,
        waiting: int,
        kv_bytes: int,
        stored: int,
        dropped: int,
        tiers: TierFigures,
        speculation: dict[Method, MethodFigures],
    ) -> WorkerStats:
        return replace(
            self._stats,
            running=running,
            prefilling=prefilling,
            waiting=waiting,
            kv_bytes=kv_bytes,
            memory_bytes=self._memory_bytes(),
            stored_blocks=stored,
            dropped_blocks=dropped,
            decode_times=self._decode_times.tally(),
            prefill_times=self._prefill_times.tally(),
            widths=self._widths.tally(),
            speculation=speculation,
            **tiers._asdict(),
        )

"""What a worker counts."""

from pomona.runtime.wire import replace
from pomona.workers import device
from pomona.workers.messages import WorkerStats


class Meter:
    """Counters since the worker's start, and the prefill rate that budgets are computed from."""

    def __init__(self) -> None:
        self._stats = WorkerStats()
        self.prefill_rate = 100.0
        """Tokens per second of the last chunks."""

    def reset(self) -> None:
        self._stats = WorkerStats()

    def decoded(self, rows: int, seconds: float) -> None:
        stats = self._stats
        self._stats = replace(
            stats,
            decode_steps=stats.decode_steps + 1,
            decode_rows=stats.decode_rows + rows,
            decode_seconds=stats.decode_seconds + seconds,
        )

    def committed(self, tokens: int) -> None:
        self._stats = replace(self._stats, output_tokens=self._stats.output_tokens + tokens)

    def restored(self, tokens: int) -> None:
        self._stats = replace(self._stats, cached_tokens=self._stats.cached_tokens + tokens)

    def prefilled(self, tokens: int, seconds: float) -> None:
        stats = self._stats
        self._stats = replace(
            stats, prompt_tokens=stats.prompt_tokens + tokens, prefill_seconds=stats.prefill_seconds + seconds
        )
        if tokens and seconds > 0:
            self.prefill_rate += 0.5 * (tokens / seconds - self.prefill_rate)

    def snapshot(
        self, *, running: int, prefilling: int, waiting: int, kv_bytes: int, stored: int, dropped: int
    ) -> WorkerStats:
        return replace(
            self._stats,
            running=running,
            prefilling=prefilling,
            waiting=waiting,
            kv_bytes=kv_bytes,
            memory_bytes=device.memory_bytes(),
            stored_blocks=stored,
            dropped_blocks=dropped,
        )

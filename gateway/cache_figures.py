"""The cache service's own figures, asked for at each scrape."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pomona.cache.client import CacheClient
from pomona.cache.messages import CacheStats
from pomona.runtime.control import Roster
from pomona.runtime.mailbox import Peer

TIMEOUT_S = 1.0
"""Seconds that a scrape waits; behind one that waited in vain, the next ones do not ask for a while."""


class CacheFigures:
    """A client of the cache service on a thread of its own, since it waits for its answers."""

    def __init__(self, endpoint: str, me: Peer, roster: Callable[[], Roster], timeout_s: float = TIMEOUT_S) -> None:
        """`roster` gives all actors as the supervisor last told."""
        self._roster = roster
        self._client = CacheClient(endpoint, me, timeout_s)
        self._thread = ThreadPoolExecutor(1, "cache-figures")

    async def ask(self) -> CacheStats | None:
        """None while the service is away or silent."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, self._roster())

    def _ask(self, roster: Roster) -> CacheStats | None:
        self._client.on_roster(roster)
        return self._client.stats()

    def close(self) -> None:
        """Ends the thread, behind the question that it may be waiting for."""
        self._thread.submit(self._client.close)
        self._thread.shutdown()


class CacheCollector(Collector):
    """The SSD tier as Prometheus sees it; what the RAM tiers do is told by their workers."""

    def __init__(self, stats: CacheStats | None) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        yield GaugeMetricFamily(
            "pomona_cache_up", "Whether the cache service answered this scrape.", float(stats is not None)
        )
        if stats is None:
            return
        for name, text, value in (
            (
                "enabled",
                "1 while blocks are written, 0 while trouble with the disk has switched that off.",
                stats.enabled,
            ),
            ("blocks", "Blocks stored on disk.", stats.blocks),
            ("bytes", "Bytes of stored blocks.", stats.bytes),
            ("max_bytes", "The quota.", stats.max_bytes),
            ("reserved_bytes", "Bytes of blocks that are being written.", stats.reserved_bytes),
            ("quarantined_bytes", "Bytes of damaged blocks that were put aside.", stats.quarantined_bytes),
            ("leases", "Reads under way.", stats.leases),
        ):
            yield GaugeMetricFamily(f"pomona_cache_{name}", text, float(value))
        for name, text, value in (
            ("hit", "Blocks that were asked for and stored.", stats.hits),
            ("missed", "Blocks that were asked for and not stored.", stats.misses),
            ("stored", "Blocks that were taken in.", stats.stored),
            ("evicted", "Blocks that made room.", stats.evicted),
            ("quarantined", "Blocks that turned out to be damaged when they were read.", stats.quarantined),
            ("refused", "Blocks that found no room, or whose write failed.", stats.refused),
        ):
            yield CounterMetricFamily(f"pomona_cache_{name}_blocks", text, float(value))

"""What the gateway shows of the cache service, over real sockets."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pomona.cache.messages import BlockKey
from pomona.gateway.app import create_app
from pomona.gateway.cache_figures import CacheFigures
from pomona.runtime.mailbox import Peer
from tests.cache.house import DEADLINE_S, CacheHouse
from tests.gateway.conftest import Gateway

A, B = BlockKey(b"a" * 32), BlockKey(b"b" * 32)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CacheHouse]:
    with CacheHouse(tmp_path / "kv") as house:
        yield house


@pytest.fixture
def figures(house: CacheHouse) -> Iterator[CacheFigures]:
    figures = CacheFigures(house.config.cache_endpoint, Peer("gateway", 1), house.roster, DEADLINE_S)
    yield figures
    figures.close()


def store(house: CacheHouse) -> None:
    """One block of ten bytes, asked for together with one that is not stored."""
    with house.client() as client:
        grant = client.reserve(A, B, 10)
        grant.path.write_bytes(bytes(10))  # type: ignore[union-attr]
        assert client.commit(grant)  # type: ignore[arg-type]
        while True:  # the commit comes by another link than the lookup
            lease = client.lookup((A, B))
            assert lease is not None
            client.release(lease)
            if lease.blocks:
                return


async def scrape(gateway: Gateway, figures: CacheFigures | None) -> tuple[dict[str, float], dict[str, object]]:
    app = create_app(dataclasses.replace(gateway.services, cache=figures))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=30) as http:
        text = (await http.get("/metrics")).text
        status = (await http.get("/admin/status")).json()
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples}, status["cache"]


async def test_a_scrape_shows_the_services_figures(gateway: Gateway, house: CacheHouse, figures: CacheFigures) -> None:
    await asyncio.to_thread(store, house)
    samples, status = await scrape(gateway, figures)
    assert (samples["pomona_cache_up"], samples["pomona_cache_enabled"]) == (1, 1)
    assert (samples["pomona_cache_blocks"], samples["pomona_cache_bytes"]) == (1, 10)
    assert samples["pomona_cache_max_bytes"] == 1 << 30
    assert samples["pomona_cache_hit_blocks_total"] == 1
    assert samples["pomona_cache_missed_blocks_total"] >= 1
    assert samples["pomona_cache_stored_blocks_total"] == 1
    for name in ("evicted", "quarantined", "refused"):
        assert samples[f"pomona_cache_{name}_blocks_total"] == 0
    assert status == {"enabled": True, "detail": "1 blocks, 10 of 1073741824 bytes", "blocks": 1, "bytes": 10}


async def test_a_tier_that_is_off_is_shown_with_its_reason(gateway: Gateway, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("", encoding="utf-8")
    with CacheHouse(in_the_way / "kv") as house:
        figures = CacheFigures(house.config.cache_endpoint, Peer("gateway", 1), house.roster, DEADLINE_S)
        samples, status = await scrape(gateway, figures)
        figures.close()
    assert (samples["pomona_cache_up"], samples["pomona_cache_enabled"]) == (1, 0)
    assert status["enabled"] is False
    assert "Not a directory" in str(status["detail"])


async def test_figures_follow_the_service_over_its_restart(
    gateway: Gateway, house: CacheHouse, figures: CacheFigures
) -> None:
    assert await figures.ask() is not None
    house.stop()
    house.start()
    answer = await figures.ask()
    assert answer is not None
    assert (answer.blocks, answer.enabled) == (0, True)


async def test_a_scrape_does_without_the_service(gateway: Gateway, house: CacheHouse) -> None:
    gone = CacheFigures(house.config.cache_endpoint, Peer("gateway", 1), lambda: house.roster("dead"))
    samples, status = await scrape(gateway, gone)
    gone.close()
    assert samples["pomona_cache_up"] == 0
    assert "pomona_cache_blocks" not in samples
    assert status is None


async def test_where_no_service_runs_there_are_no_figures(gateway: Gateway) -> None:
    samples, status = await scrape(gateway, None)
    assert not [name for name in samples if name.startswith("pomona_cache_")]
    assert status is None

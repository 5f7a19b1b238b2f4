import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import BatchKVCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs

from pomona.cache.client import CacheClient
from pomona.cache.keys import Fingerprint
from pomona.cache.layout import KVLayout
from pomona.runtime.mailbox import Peer
from pomona.workers.prefix import PrefixStore, layout_of, room_for, supports
from pomona.workers.recent import RecentPrefixes
from pomona.workers.slot_buffers import STEP
from tests.cache.house import DEADLINE_S, CacheHouse, until

BLOCK = 16
TOKENS = [random.Random(3).randrange(100) for _ in range(100)]


@pytest.fixture(scope="module")
def model() -> Model:
    mx.random.seed(0)
    model = Model(
        ModelArgs(
            model_type="llama",
            hidden_size=32,
            num_hidden_layers=2,
            intermediate_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            vocab_size=100,
        )
    )
    mx.eval(model.parameters())
    return model


def prefilled(model: Model, tokens: list[int], caches: list[Any] | None = None) -> list[Any]:
    caches = make_prompt_cache(model) if caches is None else caches
    model(mx.array([tokens]), cache=caches)
    mx.eval([array for cache in caches for array in (cache.keys, cache.values)])
    return caches


def bits(caches: list[Any], tokens: int) -> list[bytes]:
    arrays = [array[:, :, :tokens] for cache in caches for array in (cache.keys, cache.values)]
    return [bytes(memoryview(mx.contiguous(array))) for array in arrays]


@pytest.fixture(scope="module")
def layout(model: Model) -> KVLayout:
    return layout_of(prefilled(model, [1]))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CacheHouse]:
    with CacheHouse(tmp_path / "kv") as house:
        yield house


def open_store(house: CacheHouse, layout: KVLayout, weights: str = "w", name: str = "worker:m") -> PrefixStore:
    client = CacheClient(house.config.cache_endpoint, Peer(name, 1), timeout_s=DEADLINE_S)
    store = PrefixStore(client, Fingerprint(weights, "t", layout, BLOCK).root, layout, BLOCK)
    store.on_roster(house.roster())
    return store


@pytest.fixture
def store(house: CacheHouse, layout: KVLayout) -> Iterator[PrefixStore]:
    store = open_store(house, layout)
    yield store
    store.close(DEADLINE_S)


def settled(store: PrefixStore, blocks: int) -> None:
    until(lambda: store.stored_blocks + store.dropped_blocks >= blocks, f"{blocks} blocks to be written")


def restored(store: PrefixStore, model: Model, tokens: list[int], salt: str = "") -> int:
    return store.restore(tokens, salt, make_prompt_cache(model))


def block_files(house: CacheHouse) -> list[Path]:
    return sorted(Path(house.config.cache_folder).glob("blocks/*/*"))


def test_a_restored_prefix_is_the_cold_one_to_the_bit(store: PrefixStore, model: Model) -> None:
    cold = prefilled(model, TOKENS)
    assert restored(store, model, TOKENS) == 0
    store.store(TOKENS, "", cold, 0)
    settled(store, 6)
    warm = make_prompt_cache(model)
    assert store.restore(TOKENS, "", warm) == 96
    assert supports(warm)
    assert [cache.offset for cache in warm] == [96, 96]
    assert bits(warm, 96) == bits(cold, 96)
    assert (store.stored_blocks, store.dropped_blocks) == (6, 0)
    # The rest is computed behind it as if all had been computed here.
    split = prefilled(model, TOKENS[96:], prefilled(model, TOKENS[:96]))
    assert bits(prefilled(model, TOKENS[96:], warm), 100) == bits(split, 100)


def test_a_prefix_from_memory_is_the_cold_one_to_the_bit(model: Model, layout: KVLayout) -> None:
    root = Fingerprint("w", "t", layout, BLOCK).root
    store = PrefixStore(None, root, layout, BLOCK, RecentPrefixes(1 << 20, BLOCK))
    cold = prefilled(model, TOKENS)
    store.remember(TOKENS, "", cold)
    store.remember([*TOKENS[:37], *TOKENS[:20]], "", prefilled(model, [*TOKENS[:37], *TOKENS[:20]]))
    warm = make_prompt_cache(model)
    assert store.restore(TOKENS, "", warm) == 100
    assert bits(warm, 100) == bits(cold, 100)


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_what_follows_a_restored_prefix_is_written_in_place(
    store: PrefixStore, model: Model, layout: KVLayout, tier: str
) -> None:
    if tier == "memory":
        store = PrefixStore(None, Fingerprint("w", "t", layout, BLOCK).root, layout, BLOCK, RecentPrefixes(1 << 20))
        store.remember(TOKENS[:80], "", prefilled(model, TOKENS[:80]))
    else:
        store.store(TOKENS[:80], "", prefilled(model, TOKENS[:80]), 0)
        settled(store, 5)
    warm = make_prompt_cache(model)
    assert store.restore([*TOKENS] * 3, "", warm) == 80
    assert [cache.keys.shape[2] for cache in warm] == [room_for(300)] * 2
    assert room_for(300) % STEP == 0
    assert room_for(300) > 300
    assert room_for(STEP - 1) == STEP


def test_only_whole_blocks_of_a_common_prefix_are_restored(store: PrefixStore, model: Model) -> None:
    store.store(TOKENS, "", prefilled(model, TOKENS), 0)
    settled(store, 6)
    assert restored(store, model, TOKENS[:64]) == 64
    assert restored(store, model, TOKENS[:63]) == 48
    assert restored(store, model, TOKENS[:15]) == 0
    assert restored(store, model, []) == 0
    other = [*TOKENS[:40], TOKENS[40] ^ 1, *TOKENS[41:]]
    assert restored(store, model, other) == 32


def test_restores_are_counted_by_tier(house: CacheHouse, model: Model, layout: KVLayout) -> None:
    client = CacheClient(house.config.cache_endpoint, Peer("worker:m", 1), timeout_s=DEADLINE_S)
    root = Fingerprint("w", "t", layout, BLOCK).root
    store = PrefixStore(client, root, layout, BLOCK, RecentPrefixes(1 << 20))
    store.on_roster(house.roster())
    cold = prefilled(model, TOKENS)
    assert restored(store, model, TOKENS) == 0
    store.store(TOKENS, "", cold, 0)
    settled(store, 6)
    assert restored(store, model, TOKENS) == 96
    store.remember(TOKENS, "", cold)
    assert restored(store, model, TOKENS[:70]) == 70
    tiers = store.tiers
    assert (tiers.tier_misses, tiers.disk_hits, tiers.disk_tokens) == (1, 1, 96)
    assert (tiers.ram_hits, tiers.ram_tokens) == (1, 70)
    assert (tiers.ram_entries, tiers.ram_bytes) == (1, len(TOKENS) * layout.token_bytes)
    assert min(tiers.restore_seconds, tiers.store_seconds, tiers.write_seconds) > 0
    store.forget()
    assert (store.tiers.ram_hits, store.tiers.ram_entries, store.tiers.store_seconds) == (0, 0, 0.0)
    store.close(DEADLINE_S)


def test_other_weights_and_other_salts_miss(
    house: CacheHouse, store: PrefixStore, model: Model, layout: KVLayout
) -> None:
    store.store(TOKENS, "mine", prefilled(model, TOKENS), 0)
    settled(store, 6)
    assert restored(store, model, TOKENS, "yours") == 0
    stranger = open_store(house, layout, weights="others", name="worker:n")
    assert restored(stranger, model, TOKENS, "mine") == 0
    stranger.close(DEADLINE_S)
    assert restored(store, model, TOKENS, "mine") == 96


def test_a_turn_stores_only_what_it_adds(house: CacheHouse, store: PrefixStore, model: Model) -> None:
    caches = prefilled(model, TOKENS[:40])
    store.store(TOKENS[:40], "", caches, 0)
    store.store(TOKENS[:40], "", caches, 0)
    settled(store, 2)
    caches = prefilled(model, TOKENS[40:], caches)
    store.store(TOKENS, "", caches, 40)
    settled(store, 6)
    store.store(TOKENS, "", caches, 0)
    store.close(DEADLINE_S)
    assert (store.stored_blocks, store.dropped_blocks) == (6, 0)
    assert len(block_files(house)) == 6


def test_no_more_is_stored_than_the_caches_hold(store: PrefixStore, model: Model) -> None:
    store.store(TOKENS, "", prefilled(model, TOKENS[:50]), 0)
    settled(store, 3)
    assert restored(store, model, TOKENS) == 48


def test_stored_prefixes_outlive_worker_and_service(
    house: CacheHouse, store: PrefixStore, model: Model, layout: KVLayout
) -> None:
    store.store(TOKENS, "", prefilled(model, TOKENS), 0)
    store.close(DEADLINE_S)
    house.stop()
    house.start()
    again = open_store(house, layout)
    assert restored(again, model, TOKENS) == 96
    again.close(DEADLINE_S)


@pytest.mark.parametrize("spoil", ["flip", "cut", "swap", "remove"])
def test_a_bad_file_is_put_aside_and_recomputed(
    house: CacheHouse, store: PrefixStore, model: Model, spoil: str
) -> None:
    cold = prefilled(model, TOKENS)
    store.store(TOKENS, "", cold, 0)
    settled(store, 6)
    client = store._client
    assert client is not None
    lease = client.lookup(store.keys_of(TOKENS, "")[1:])
    assert lease is not None
    third, fourth = Path(lease.blocks[2].path), Path(lease.blocks[3].path)
    client.release(lease)
    match spoil:
        case "flip":
            data = bytearray(third.read_bytes())
            data[-1000] ^= 4
            third.write_bytes(data)
        case "cut":
            third.write_bytes(third.read_bytes()[:-1])
        case "swap":
            third.write_bytes(fourth.read_bytes())
        case "remove":
            third.unlink()
    warm = make_prompt_cache(model)
    assert store.restore(TOKENS, "", warm) == 32
    assert bits(warm, 32) == bits(cold, 32)
    assert restored(store, model, TOKENS) == 32, "a miss from now on"
    stats = client.stats()
    assert stats is not None
    assert (stats.leases, stats.quarantined, stats.blocks) == (0, 1, 5)
    store.store(TOKENS, "", cold, 32)
    until(lambda: restored(store, model, TOKENS) == 96, "the block to be stored again")


def test_while_the_service_is_away_all_misses_and_stores_are_dropped_and_counted(
    house: CacheHouse, store: PrefixStore, model: Model
) -> None:
    cold = prefilled(model, TOKENS)
    store.store(TOKENS[:32], "", cold, 0)
    settled(store, 2)
    house.stop()
    store.on_roster(house.roster("dead"))
    assert restored(store, model, TOKENS) == 0
    store.store(TOKENS, "", cold, 0)
    settled(store, 8)
    assert (store.stored_blocks, store.dropped_blocks) == (2, 6)
    house.start()
    store.on_roster(house.roster())
    assert restored(store, model, TOKENS) == 32
    store.store(TOKENS, "", cold, 32)
    settled(store, 12)
    assert restored(store, model, TOKENS) == 96


def test_a_queue_that_is_full_drops_and_counts(house: CacheHouse, model: Model, layout: KVLayout) -> None:
    client = CacheClient(house.config.cache_endpoint, Peer("worker:m", 1), timeout_s=DEADLINE_S)
    root = Fingerprint("w", "t", layout, BLOCK).root
    store = PrefixStore(client, root, layout, BLOCK, max_queued_bytes=2 * BLOCK * layout.token_bytes - 1)
    # Nobody takes from the queue as long as the service, which is said to be ready, does not answer.
    house.stop()
    store.on_roster(house.roster())
    store.store(TOKENS, "", prefilled(model, TOKENS), 0)
    assert store.dropped_blocks == 5
    house.start()
    store.on_roster(house.roster())
    store.close(0.1)


def test_what_leaves_the_quota_is_stored_again_when_it_is_needed(
    tmp_path: Path, model: Model, layout: KVLayout
) -> None:
    size = BLOCK * layout.token_bytes + 2048
    with CacheHouse(tmp_path / "kv", max_bytes=7 * size) as house:
        store = open_store(house, layout)
        for _ in range(2):
            for turn in (TOKENS, TOKENS[::-1]):
                before = store.stored_blocks + store.dropped_blocks
                got = restored(store, model, turn)
                store.store(turn, "", prefilled(model, turn), got)
                settled(store, before + 6 - got // BLOCK)
                assert restored(store, model, turn) == 96
        store.close(DEADLINE_S)
        assert sum(path.stat().st_size for path in block_files(house)) <= 7 * size


def test_caches_of_other_kinds_than_the_layout_names_are_left_alone(store: PrefixStore, model: Model) -> None:
    store.store(TOKENS, "", prefilled(model, TOKENS), 0)
    settled(store, 6)
    for others in (
        [RotatingKVCache(max_size=32) for _ in range(2)],
        [KVCache(), RotatingKVCache(max_size=32)],
        [KVCache()],
        [CacheList(KVCache()), KVCache(), KVCache()],
        [BatchKVCache([0]), KVCache()],
    ):
        assert store.restore(TOKENS, "", others) == 0
        store.store(TOKENS, "other", others, 0)
        assert all(cache.empty() for cache in others)
    assert restored(store, model, TOKENS, "other") == 0
    assert (store.stored_blocks, store.dropped_blocks) == (6, 0)


def test_caches_of_another_layout_are_not_stored(store: PrefixStore) -> None:
    caches = [KVCache(), KVCache()]
    for cache in caches:
        cache.update_and_fetch(mx.zeros((1, 1, 32, 8)), mx.zeros((1, 1, 32, 8)))
    store.store(TOKENS, "", caches, 0)
    assert (store.stored_blocks, store.dropped_blocks) == (0, 2)


def test_a_prefix_is_restored_into_empty_caches_only(store: PrefixStore, model: Model) -> None:
    with pytest.raises(ValueError, match="empty caches"):
        store.restore(TOKENS, "", prefilled(model, TOKENS[:3]))


def test_without_a_service_nothing_is_restored_or_stored(model: Model, layout: KVLayout) -> None:
    store = PrefixStore(None, Fingerprint("w", "t", layout, BLOCK).root, layout, BLOCK)
    store.store(TOKENS, "", prefilled(model, TOKENS), 0)
    assert restored(store, model, TOKENS) == 0
    assert not store.wants(0, 96)
    store.close(1.0)
    assert (store.stored_blocks, store.dropped_blocks) == (0, 0)


def test_new_whole_blocks_are_what_is_worth_storing(store: PrefixStore) -> None:
    assert store.wants(0, 16)
    assert store.wants(16, 40)
    assert not store.wants(0, 15)
    assert not store.wants(32, 47)


def test_two_replicas_store_a_prefix_once(
    house: CacheHouse, store: PrefixStore, model: Model, layout: KVLayout
) -> None:
    other = open_store(house, layout, name="worker:m:2")
    cold = prefilled(model, TOKENS)
    for one in (store, other):
        one.store(TOKENS, "", cold, 0)
    other.close(DEADLINE_S)
    store.close(DEADLINE_S)
    assert store.stored_blocks + other.stored_blocks == 6
    assert store.dropped_blocks + other.dropped_blocks == 0
    assert len(block_files(house)) == 6


def test_closing_ends_the_writers_thread(house: CacheHouse, layout: KVLayout) -> None:
    before = threading.active_count()
    store = open_store(house, layout)
    assert threading.active_count() == before + 1
    store.close(DEADLINE_S)
    assert threading.active_count() == before

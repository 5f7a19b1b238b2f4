from collections.abc import Sequence

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from pomona.workers.recent import RecentPrefixes, copy_prefix

ONE = 2 * 256 * 4
"""Bytes of a cache of one head and one dimension: keys and values, float32, mlx-lm's step of 256 tokens."""


def caches(length: int, first: float = 0.0) -> list[KVCache]:
    cache = KVCache()
    values = mx.arange(first, first + length, dtype=mx.float32).reshape(1, 1, length, 1)
    cache.update_and_fetch(values, -values)
    mx.eval(cache.keys, cache.values)
    return [cache]


def shared(store: RecentPrefixes, tokens: Sequence[int], salt: str = "") -> int:
    hit = store.longest(tokens, salt)
    return 0 if hit is None else hit[1]


def keep(store: RecentPrefixes, *entries: Sequence[int], salt: str = "") -> None:
    for tokens in entries:
        store.remember(tokens, salt, caches(len(tokens)))


def test_the_longest_common_beginning_is_found() -> None:
    store = RecentPrefixes(10 * ONE)
    keep(store, [1, 2, 3], [1, 2, 9, 9, 9], [7])
    assert shared(store, [1, 2, 3, 4]) == 3
    assert shared(store, [1, 2, 9, 9, 1]) == 4
    assert shared(store, [1, 5]) == 1
    assert shared(store, [7]) == 1
    assert store.longest([4, 1, 2], "") is None
    assert store.longest([], "") is None


def test_salts_share_nothing() -> None:
    store = RecentPrefixes(10 * ONE)
    keep(store, [1, 2, 3], salt="x")
    assert (shared(store, [1, 2, 3], "x"), shared(store, [1, 2, 3], "")) == (3, 0)


def test_an_entry_makes_room_for_a_longer_one_and_gives_way_to_none_shorter() -> None:
    store = RecentPrefixes(10 * ONE)
    keep(store, [1, 2], [1, 2, 3], [1, 2])
    assert (store.nbytes, shared(store, [1, 2, 3])) == (ONE, 3)
    keep(store, [1, 2, 4])
    assert store.nbytes == 2 * ONE


def test_the_least_recently_used_goes_first() -> None:
    store = RecentPrefixes(2 * ONE)
    keep(store, [1], [2])
    assert shared(store, [1]) == 1
    keep(store, [3])
    assert [shared(store, [token]) for token in (1, 2, 3)] == [1, 0, 1]
    keep(store, [1])  # it is there already: that is a use
    keep(store, [4])
    assert [shared(store, [token]) for token in (1, 3, 4)] == [1, 0, 1]
    assert store.nbytes == 2 * ONE


def test_what_is_too_large_or_empty_is_not_kept() -> None:
    store = RecentPrefixes(ONE)
    keep(store, [])
    assert store.nbytes == 0
    keep(store, [1], range(300))
    assert (store.nbytes, shared(store, range(300)), shared(store, [1])) == (ONE, 0, 1)
    store.clear()
    assert (store.nbytes, shared(store, [1])) == (0, 0)


@pytest.mark.parametrize("ram_bytes", [0, 1])
def test_only_memory_keeps(ram_bytes: int) -> None:
    store = RecentPrefixes(ram_bytes)
    keep(store, [1, 2])
    assert store.keeps is bool(ram_bytes)
    assert shared(store, [1, 2]) == 0


def test_a_copied_beginning_grows_without_a_trace_in_its_source() -> None:
    store = RecentPrefixes(10 * ONE)
    store.remember(range(5), "", caches(5))
    for length in (5, 3):
        hit = store.longest(range(length), "")
        assert hit is not None
        target = [KVCache()]
        copy_prefix(hit[0], hit[1], target)
        new = mx.full((1, 1, 2, 1), 99.0)
        keys, values = target[0].update_and_fetch(new, new)
        assert keys.flatten().tolist() == [*range(length), 99, 99]
        assert values.flatten().tolist() == [*(-float(value) for value in range(length)), 99, 99]
        source = hit[0].caches[0]
        assert source.offset == 5
        assert source.keys is not None
        assert source.keys[..., :7, :].flatten().tolist() == [0, 1, 2, 3, 4, 0, 0]


def test_an_entry_without_keys_is_refused() -> None:
    store = RecentPrefixes(10)
    empty = KVCache()
    store.remember([1], "", [empty])
    hit = store.longest([1], "")
    assert hit is not None
    with pytest.raises(ValueError, match="holds nothing"):
        copy_prefix(hit[0], 1, [KVCache()])

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from pomona.workers.recent import MAX_MARKS, RecentPrefixes, copy_prefix, take_mark

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
        assert [part.flatten().tolist() for part in hit[0].slices[0]] == [[0, 1, 2, 3, 4], [0, -1, -2, -3, -4]]


def test_nothing_is_kept_of_caches_that_do_not_hold_the_tokens() -> None:
    store = RecentPrefixes(10 * ONE)
    store.remember([1], "", [KVCache()])
    store.remember([1, 2, 3], "", caches(2))
    store.remember([1], "", mixture(2))
    store.remember([1, 2, 3], "", mixture(2))
    assert store.entries == 0


WINDOW = 4
STATE = 100
"""Bytes of the recurrent state below."""


def mixture(tokens: int) -> list[Any]:
    """A plain layer, a window and a recurrent state behind so many tokens; the state is their number."""
    window, recurrent = RotatingKVCache(max_size=WINDOW), ArraysCache(1)
    values = mx.arange(tokens, dtype=mx.float32).reshape(1, 1, tokens, 1)
    window.update_and_fetch(values, -values)
    recurrent[0] = mx.full((1, STATE // 4), tokens, dtype=mx.float32)
    return [*caches(tokens), CacheList(window, recurrent)]


def fresh_mixture() -> list[Any]:
    return [KVCache(), CacheList(RotatingKVCache(max_size=WINDOW), ArraysCache(1))]


def restored(store: RecentPrefixes, tokens: Sequence[int]) -> int:
    """The tokens restored, which all layers agree on."""
    hit = store.longest(tokens, "")
    if hit is None:
        return 0
    entry, length = hit
    target = fresh_mixture()
    copy_prefix(entry, length, target)
    plain, (window, recurrent) = target[0], target[1].caches
    assert plain.offset == window.offset == recurrent[0][0, 0].item() == length
    assert plain.state[0].flatten().tolist() == list(range(length))
    assert window.keys.flatten().tolist() == list(range(length))[-WINDOW:]
    for cache in (plain, window):
        cache.update_and_fetch(mx.full((1, 1, 1, 1), 99.0), mx.full((1, 1, 1, 1), 99.0))
    recurrent[0][:] = 99
    return length


def test_state_is_restored_where_it_was_marked_and_nowhere_else() -> None:
    store = RecentPrefixes(10 * ONE)
    store.remember(range(10), "", mixture(10), [take_mark(mixture(3), 3), take_mark(mixture(6), 6)])
    for _ in range(2):  # what is written to the caches that were filled leaves no trace
        wanted = {10: 10, 11: 10, 9: 6, 6: 6, 5: 3, 3: 3, 2: 0}
        assert {length: restored(store, range(length)) for length in wanted} == wanted
    assert restored(store, [0, 1, 2, 3, 4, 5, 6, 7, 99, 9, 10]) == 6
    hit = store.longest(range(10), "")
    assert hit is not None
    with pytest.raises(ValueError, match="cannot be restored at 7 tokens"):
        copy_prefix(hit[0], 7, fresh_mixture())


def test_a_longer_entry_takes_over_the_marks_of_the_shorter_and_gets_those_of_later_ones() -> None:
    store = RecentPrefixes(10 * ONE)
    for length in (5, 9, 7):
        store.remember(range(length), "", mixture(length))
    assert store.entries == 1
    assert [restored(store, range(length)) for length in (4, 5, 6, 7, 8, 9, 20)] == [0, 5, 5, 7, 7, 9, 9]
    store.remember([*range(8), 99], "", mixture(9))
    assert store.entries == 2
    assert restored(store, [*range(8), 99]) == 9


def test_the_bytes_of_marks_count_and_too_many_are_thinned_out_but_for_the_last() -> None:
    room = 100
    store = RecentPrefixes(ONE + 4 * (2 * 4 * WINDOW + STATE))
    store.remember(range(room), "", mixture(room), [take_mark(mixture(tokens), tokens) for tokens in (20, 40, 60, 80)])
    assert store.nbytes == ONE + 3 * (2 * 4 * WINDOW + STATE)
    assert [restored(store, range(length)) for length in (100, 99, 59, 19)] == [100, 60, 20, 0]
    store = RecentPrefixes(100 * ONE)
    for length in range(4, 200):
        store.remember(range(length), "", mixture(length))
    assert store.entries == 1
    hit = store.longest(range(1000), "")
    assert hit is not None
    assert hit[1] == 199
    kept = [mark.tokens for mark in hit[0].marks]
    assert len(kept) <= MAX_MARKS
    gaps = [later - former for former, later in pairwise(kept)]
    assert max(gaps) == gaps[0], "the oldest are furthest apart"


def test_marks_that_leave_no_room_make_way_for_the_entry() -> None:
    bytes_of_one = ONE + 2 * 4 * WINDOW + STATE
    store = RecentPrefixes(bytes_of_one)
    store.remember(range(9), "", mixture(9), [take_mark(mixture(5), 5)])
    assert (store.nbytes, restored(store, range(8)), restored(store, range(9))) == (bytes_of_one, 0, 9)
    store.remember([7, *range(9)], "", mixture(10))
    assert (store.nbytes, restored(store, range(9))) == (bytes_of_one, 0)
    store = RecentPrefixes(bytes_of_one - 1)
    store.remember(range(9), "", mixture(9))
    assert store.entries == 0


def test_a_mark_is_a_copy() -> None:
    source = mixture(6)
    mark = take_mark(source, 6)
    window, recurrent = source[1].caches
    for _ in range(3):
        window.update_and_fetch(mx.full((1, 1, 1, 1), 99.0), mx.full((1, 1, 1, 1), 99.0))
    recurrent[0][:] = 99
    (keys, values), (state,) = mark.states
    assert keys.flatten().tolist() == [2, 3, 4, 5]
    assert values.flatten().tolist() == [-2, -3, -4, -5]
    assert set(state.flatten().tolist()) == {6}
    assert mark.nbytes == 2 * 4 * WINDOW + STATE

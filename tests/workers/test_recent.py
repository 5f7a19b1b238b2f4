from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from pomona.workers.mark import MAX_MARKS, take_mark
from pomona.workers.recent import RecentPrefixes, copy_prefix

TOKEN = 2 * 4
"""Bytes of a token in a cache of one head and one dimension: keys and values, float32."""


def caches(length: int, first: float = 0.0) -> list[KVCache]:
    cache = KVCache()
    values = mx.arange(first, first + length, dtype=mx.float32).reshape(1, 1, length, 1)
    cache.update_and_fetch(values, -values)
    mx.eval(cache.keys, cache.values)
    return [cache]


def shared(store: RecentPrefixes, tokens: Sequence[int], salt: str = "") -> int:
    hit = store.longest(tokens, salt)
    return 0 if hit is None else hit.length


def keep(store: RecentPrefixes, *entries: Sequence[int], salt: str = "") -> None:
    for tokens in entries:
        store.remember(tokens, salt, caches(len(tokens)))


def test_the_longest_common_beginning_is_found() -> None:
    store = RecentPrefixes(10**6)
    keep(store, [1, 2, 3], [1, 2, 9, 9, 9], [7])
    assert shared(store, [1, 2, 3, 4]) == 3
    assert shared(store, [1, 2, 9, 9, 1]) == 4
    assert shared(store, [1, 5]) == 1
    assert shared(store, [7]) == 1
    assert store.longest([4, 1, 2], "") is None
    assert store.longest([], "") is None


def test_salts_share_nothing() -> None:
    store = RecentPrefixes(10**6)
    keep(store, [1, 2, 3], salt="x")
    assert (shared(store, [1, 2, 3], "x"), shared(store, [1, 2, 3], "")) == (3, 0)


def test_a_common_beginning_is_held_once() -> None:
    store = RecentPrefixes(10**6)
    keep(store, [1, 2], [1, 2, 3], [1, 2], [1, 2, 3])
    assert store.nbytes == 3 * TOKEN
    keep(store, [1, 2, 4], [1, 2, 4, 5])
    assert store.nbytes == 5 * TOKEN
    system = range(10, 1010)
    keep(store, *([*system, number] for number in range(20)))
    assert store.nbytes == (5 + 1000 + 20) * TOKEN


def test_the_least_recently_used_goes_first() -> None:
    store = RecentPrefixes(2 * TOKEN)
    keep(store, [1], [2])
    assert shared(store, [1]) == 1
    keep(store, [3])
    assert [shared(store, [token]) for token in (1, 2, 3)] == [1, 0, 1]
    keep(store, [1])  # it is there already: that is a use
    keep(store, [4])
    assert [shared(store, [token]) for token in (1, 3, 4)] == [1, 0, 1]
    assert store.nbytes == 2 * TOKEN


def test_tails_go_before_heads_block_by_block() -> None:
    store = RecentPrefixes(12 * TOKEN, block_tokens=4)
    keep(store, range(10))
    keep(store, [*range(6), 99, 99])  # parts in the second block, and adds two tokens
    assert (store.nbytes, shared(store, range(10))) == (12 * TOKEN, 10)
    keep(store, [50])
    assert store.nbytes == 11 * TOKEN
    assert (shared(store, [*range(6), 99, 99]), shared(store, range(10))) == (6, 10)
    keep(store, range(60, 65))
    assert [shared(store, tokens) for tokens in ([50], range(10), range(60, 65))] == [0, 6, 5]


def test_of_what_is_too_large_the_beginning_is_kept() -> None:
    store = RecentPrefixes(10 * TOKEN, block_tokens=4)
    keep(store, [])
    assert store.nbytes == 0
    keep(store, [99], range(30))
    assert (store.nbytes, shared(store, range(30)), shared(store, [99])) == (10 * TOKEN, 10, 0)
    keep(store, range(30))
    assert (store.nbytes, shared(store, range(30))) == (10 * TOKEN, 10)
    store.clear()
    assert (store.nbytes, store.entries, shared(store, range(30))) == (0, 0, 0)


@pytest.mark.parametrize("ram_bytes", [0, 1])
def test_only_memory_keeps(ram_bytes: int) -> None:
    store = RecentPrefixes(ram_bytes)
    keep(store, [1, 2])
    assert store.keeps is bool(ram_bytes)
    assert shared(store, [1, 2]) == 0


@pytest.mark.parametrize("room", [0, 4, 7, 256])
@pytest.mark.parametrize("block_tokens", [2, 100])
def test_a_copied_beginning_grows_without_a_trace_in_its_source(room: int, block_tokens: int) -> None:
    store = RecentPrefixes(10**6, block_tokens)
    store.remember(range(5), "", caches(5))
    for length in (5, 3, 4):
        hit = store.longest(range(length), "")
        assert hit is not None
        target = [KVCache()]
        copy_prefix(hit, target, room)
        assert target[0].keys.shape[2] == max(room, length)
        new = mx.full((1, 1, 2, 1), 99.0)
        keys, values = target[0].update_and_fetch(new, new)
        assert keys.flatten().tolist() == [*range(length), 99, 99]
        assert values.flatten().tolist() == [*(-float(value) for value in range(length)), 99, 99]


def test_what_is_kept_does_not_change_with_its_source() -> None:
    store = RecentPrefixes(10**6)
    source = caches(5)
    store.remember(range(5), "", source)
    source[0].keys[:] = 99
    assert source[0].trim(2) == 2
    source[0].update_and_fetch(mx.full((1, 1, 2, 1), 99.0), mx.full((1, 1, 2, 1), 99.0))
    hit = store.longest(range(5), "")
    assert hit is not None
    target = [KVCache()]
    copy_prefix(hit, target)
    assert target[0].keys.flatten().tolist() == [0, 1, 2, 3, 4]


def test_nothing_is_kept_of_caches_that_do_not_hold_the_tokens() -> None:
    store = RecentPrefixes(10**6)
    store.remember([1], "", [KVCache()])
    store.remember([1, 2, 3], "", caches(2))
    store.remember([1], "", mixture(2))
    store.remember([1, 2, 3], "", mixture(2))
    store.remember([1], "", [])
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
    length = hit.length
    target = fresh_mixture()
    copy_prefix(hit, target, length + 3)
    plain, (window, recurrent) = target[0], target[1].caches
    assert plain.offset == window.offset == recurrent[0][0, 0].item() == length
    assert plain.keys[..., :length, :].flatten().tolist() == list(range(length))
    assert window.keys.flatten().tolist() == list(range(length))[-WINDOW:]
    for cache in (plain, window):
        cache.update_and_fetch(mx.full((1, 1, 1, 1), 99.0), mx.full((1, 1, 1, 1), 99.0))
    recurrent[0][:] = 99
    return length


def test_state_is_restored_where_it_was_marked_and_nowhere_else() -> None:
    store = RecentPrefixes(10**6)
    store.remember(range(10), "", mixture(10), [take_mark(mixture(3), 3), take_mark(mixture(6), 6)])
    for _ in range(2):  # what is written to the caches that were filled leaves no trace
        wanted = {10: 10, 11: 10, 9: 6, 6: 6, 5: 3, 3: 3, 2: 0}
        assert {length: restored(store, range(length)) for length in wanted} == wanted
    assert restored(store, [0, 1, 2, 3, 4, 5, 6, 7, 99, 9, 10]) == 6


MARK = 2 * 4 * WINDOW + STATE


def test_what_goes_on_behind_a_mark_keeps_it_and_one_within_gets_its_own() -> None:
    store = RecentPrefixes(10**6)
    for length in (5, 9, 7):
        store.remember(range(length), "", mixture(length))
    assert store.nbytes == 9 * TOKEN + 3 * MARK
    assert [restored(store, range(length)) for length in (4, 5, 6, 7, 8, 9, 20)] == [0, 5, 5, 7, 7, 9, 9]
    store.remember([*range(8), 99], "", mixture(9))
    assert store.nbytes == 10 * TOKEN + 4 * MARK
    assert [restored(store, tokens) for tokens in ([*range(8), 99], range(9))] == [9, 9]
    assert store.shared([*range(8), 50], "") == 8


def test_marks_are_thinned_out_but_for_the_last_and_those_where_prompts_part() -> None:
    room = 100
    store = RecentPrefixes(room * TOKEN + 4 * MARK)
    store.remember(range(room), "", mixture(room), [take_mark(mixture(tokens), tokens) for tokens in (20, 40, 60, 80)])
    assert store.nbytes == room * TOKEN + 3 * MARK
    assert [restored(store, range(length)) for length in (100, 99, 59, 19)] == [100, 60, 20, 0]
    store = RecentPrefixes(10**6)
    store.remember(range(4), "", mixture(4))
    for other in (50, 51):
        store.remember([*range(4), other], "", mixture(5))
    for length in range(5, 200):
        store.remember(range(length), "", mixture(length))
    marks = [length for length in range(4, 200) if restored(store, range(length)) == length]
    assert (marks[0], marks[-1]) == (4, 199)
    assert len(marks) <= MAX_MARKS
    gaps = [later - former for former, later in pairwise(marks[1:])]
    assert max(gaps) == gaps[0], "the oldest are furthest apart"


def test_the_mark_where_prompts_part_outlives_its_neighbours() -> None:
    store = RecentPrefixes(10**6)
    parting = 57
    for length in range(4, 200):
        store.remember(range(length), "", mixture(length))
        if length == parting + 1:
            store.remember([*range(parting), 300], "", mixture(length))
    assert restored(store, range(parting)) == parting
    assert restored(store, range(parting + 1)) == parting
    assert restored(store, range(parting - 1)) < parting - 1


def test_what_is_taken_back_is_what_lies_behind_a_length_and_leads_nowhere_else() -> None:
    store = RecentPrefixes(10**6, block_tokens=4)
    keep(store, range(6), [*range(6), *range(20, 30)], [*range(6), 50])
    store.take_back([*range(6), *range(20, 30)], "", 8)
    assert shared(store, [*range(6), *range(20, 30)]) == 8
    store.take_back([*range(6), *range(20, 30)], "", 0)
    assert (shared(store, [*range(6), *range(20, 30)]), shared(store, [*range(6), 50])) == (6, 7)
    store.take_back([*range(6), 50], "x", 0)
    assert store.nbytes == 7 * TOKEN
    store.take_back([*range(6), 50], "", 0)
    assert (store.nbytes, store.entries) == (0, 0)


def test_marks_that_leave_no_room_make_way_for_the_last() -> None:
    bytes_of_one = 9 * TOKEN + MARK
    store = RecentPrefixes(bytes_of_one)
    store.remember(range(9), "", mixture(9), [take_mark(mixture(5), 5)])
    assert (store.nbytes, restored(store, range(8)), restored(store, range(9))) == (bytes_of_one, 0, 9)
    store.remember([7, *range(8)], "", mixture(9))
    assert (store.nbytes, restored(store, range(9))) == (bytes_of_one, 0)
    store = RecentPrefixes(bytes_of_one - 1)
    store.remember(range(9), "", mixture(9))
    assert store.entries == 0
    store.remember(range(9), "", mixture(9), [take_mark(mixture(5), 5)])
    assert (store.nbytes, restored(store, range(9))) == (5 * TOKEN + MARK, 5), "the beginning that has room"


def test_no_block_stays_from_which_nothing_can_be_restored() -> None:
    store = RecentPrefixes(12 * TOKEN + 2 * MARK, block_tokens=2)
    store.remember(range(9), "", mixture(9))
    store.remember([*range(4), 50, 51], "", mixture(6))
    assert store.nbytes == 11 * TOKEN + 2 * MARK
    store.remember(range(70, 74), "", mixture(4))
    assert store.nbytes == 10 * TOKEN + 2 * MARK, "all of the first behind the fork is gone"
    store.remember(range(80, 84), "", mixture(4))
    assert (store.nbytes, store.shared(range(9), "")) == (8 * TOKEN + 2 * MARK, 0)


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

"""The RAM tier under random use: its budget, what it gives back, and who goes first, by a plain account of uses."""

import random
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache

from pomona.workers.mark import take_mark
from pomona.workers.recent import RecentPrefixes, copy_prefix

TOKEN = 2 * 4
STATE = 40
BLOCK = 4
LONGEST = 24

Cell = tuple[object, ...]
"""A salt and the tokens of a prompt up to one of them: what that one's KV follows from."""


def value(cell: Cell) -> float:
    return float(crc32(repr(cell).encode()) % 2**20)


def cells(salt: str, tokens: Sequence[int]) -> list[Cell]:
    return [(salt, *tokens[: end + 1]) for end in range(len(tokens))]


def computed(salt: str, tokens: Sequence[int]) -> KVCache:
    """What a forward of `tokens` leaves: keys that name all before them."""
    cache = KVCache()
    keys = mx.array([value(cell) for cell in cells(salt, tokens)]).reshape(1, 1, -1, 1)
    cache.update_and_fetch(keys, -keys)
    return cache


def state(salt: str, tokens: Sequence[int]) -> ArraysCache:
    cache = ArraysCache(1)
    cache[0] = mx.full((1, STATE // 4), value(cells(salt, tokens)[-1]))
    return cache


class Trace:
    """Prompts that begin like earlier ones and part from them anywhere."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)
        self._known: list[tuple[str, list[int]]] = []

    def next(self) -> tuple[str, list[int], bool]:
        """A salt, tokens, and whether they are to be remembered."""
        source = self._source
        salt, head = source.choice(self._known) if self._known and source.random() < 0.8 else (source.choice("xy"), [])
        head = head[: source.randint(0, len(head))]
        tokens = [*head, *(source.randrange(3) for _ in range(source.randint(1, LONGEST - len(head) or 1)))]
        self._known = [*self._known[-30:], (salt, tokens)]
        return salt, tokens, source.random() < 0.6


def restored(store: RecentPrefixes, salt: str, tokens: Sequence[int], *, stateful: bool) -> int:
    """The tokens restored, each of them as it was computed."""
    hit = store.longest(tokens, salt)
    if hit is None:
        return 0
    caches: list[Any] = [KVCache(), *([ArraysCache(1)] if stateful else [])]
    copy_prefix(hit, caches, hit.length + 1)
    whole = [value(cell) for cell in cells(salt, tokens[: hit.length])]
    assert caches[0].keys.flatten().tolist() == [*whole, 0.0]
    assert caches[0].values.flatten().tolist() == [*(-each for each in whole), 0.0]
    if stateful:
        assert set(caches[1][0].flatten().tolist()) == {whole[-1]}
    return hit.length


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("room", [9, 40, 200])
def test_the_budget_is_kept_and_the_least_recent_tails_go_first(seed: int, room: int) -> None:
    trace, store = Trace(seed), RecentPrefixes(room * TOKEN, BLOCK)
    used: dict[Cell, int] = {}
    held: set[Cell] = set()
    for now in range(200):
        salt, tokens, to_remember = trace.next()
        known = sum(cell in held for cell in cells(salt, tokens))
        if to_remember:
            store.remember(tokens, salt, [computed(salt, tokens)])
            known = min(len(tokens), room)
            held.update(cells(salt, tokens)[:known])
        else:
            assert restored(store, salt, tokens, stateful=False) == known
        used.update(dict.fromkeys(cells(salt, tokens)[:known], now))
        left = {cell for cell in held if store.shared(cell[1:], str(cell[0])) == len(cell) - 1}  # type: ignore[arg-type]
        assert left.issuperset(cells(salt, tokens)[:known]), "what was just used is there"
        assert store.nbytes == len(left) * TOKEN <= room * TOKEN
        if gone := held - left:
            last = max(used[cell] for cell in gone)
            for cell in left:  # a block is used as a whole, from its first token on
                block = [cell[:end] for end in range(max(2, len(cell) - BLOCK + 1), len(cell) + 1)]
                assert max(used[each] for each in block) >= last
        held = left


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("room", [30, 80, 300])
def test_the_budget_is_kept_with_state_and_the_last_prompt_is_restored(seed: int, room: int) -> None:
    trace, store = Trace(seed), RecentPrefixes(room * TOKEN, BLOCK)
    for _ in range(150):
        salt, tokens, to_remember = trace.next()
        if to_remember:
            ends = range(BLOCK, len(tokens), BLOCK)
            marks = [take_mark([state(salt, tokens[:end])], end) for end in ends]
            store.remember(tokens, salt, [computed(salt, tokens), state(salt, tokens)], marks)
            assert restored(store, salt, tokens, stateful=True) == len(tokens)
            assert restored(store, salt, [*tokens, 9], stateful=True) == len(tokens)
        else:
            assert restored(store, salt, tokens, stateful=True) <= store.shared(tokens, salt)
        assert store.nbytes == sum(node.nbytes for node in store._order) <= room * TOKEN

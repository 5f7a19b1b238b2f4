from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, ChunkedKVCache, KVCache, QuantizedKVCache, RotatingKVCache

from pomona.workers.layers import describe, empty, fill, fits, holds, is_state, slices, state

WINDOW = 12

KINDS: dict[str, Callable[[], Any]] = {
    "plain": KVCache,
    "quantized": lambda: QuantizedKVCache(group_size=32, bits=8),
    "rotating": lambda: RotatingKVCache(max_size=WINDOW),
    "chunked": lambda: ChunkedKVCache(chunk_size=WINDOW),
}


def append(cache: Any, start: int, tokens: int) -> None:
    """The same keys and values for the same positions, whatever the pieces."""
    if isinstance(cache, ChunkedKVCache):
        cache.maybe_trim_front()  # as models do before a forward
    positions = mx.arange(start, start + tokens, dtype=mx.float32)[None, None, :, None]
    keys = mx.sin(positions * mx.arange(1, 33))
    cache.update_and_fetch(keys, -keys)


def held(cache: Any, tokens: int) -> list[list[float]]:
    arrays = state(cache) if is_state(cache) else slices(cache, 0, tokens)
    return [array.flatten().tolist() for array in arrays]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pieces", [(1,), (5, 1), (WINDOW - 1,), (WINDOW,), (7, 6), (30,), (10, *(1,) * 9), (20, 1, 1)])
@pytest.mark.parametrize("after", [(1, 1, 1), (4, 1), (20, 1, 3), (1,) * 15])
def test_a_filled_cache_goes_on_as_its_source_and_leaves_it_alone(
    kind: str, pieces: tuple[int, ...], after: tuple[int, ...]
) -> None:
    source, tokens = KINDS[kind](), 0
    for piece in pieces:
        append(source, tokens, piece)
        tokens += piece
    arrays = state(source) if is_state(source) else slices(source, 0, tokens)
    kept = [array.flatten().tolist() for array in arrays]
    twins = [KINDS[kind](), KINDS[kind]()]
    for twin in twins:
        fill(twin, arrays, tokens)
        assert (twin.offset, holds(twin, tokens), empty(twin)) == (tokens, True, False)
        assert describe(twin) == describe(source)
        if kind == "rotating":
            assert twin._idx == min(tokens, WINDOW), "the oldest is written over next"
    for piece in after:
        append(source, tokens, piece)
        append(twins[0], tokens, piece)
        tokens += piece
        assert held(twins[0], tokens) == held(source, tokens)
        assert twins[0].offset == source.offset
    assert [array.flatten().tolist() for array in arrays] == kept
    assert held(twins[1], twins[1].offset) == kept


def test_recurrent_state_is_handed_over_without_an_alias() -> None:
    source, twin = ArraysCache(2), ArraysCache(2)
    source[0], source[1] = mx.zeros((1, 3)), mx.ones((1, 2))
    arrays = state(source)
    fill(twin, arrays, 5)
    twin[0][:, 1] = 7
    assert source[0].tolist() == [[0, 0, 0]]
    assert arrays[0].tolist() == [[0, 0, 0]]
    assert twin[0].tolist() == [[0, 7, 0]]


def test_state_stands_at_one_number_of_tokens_and_slices_reach_over_all() -> None:
    for kind, make in KINDS.items():
        cache = make()
        assert not holds(cache, 0)
        append(cache, 0, 5)
        assert [holds(cache, tokens) for tokens in (4, 5, 6)] == [not is_state(cache), True, False], kind


def test_an_empty_cache_fits_its_own_layout_and_no_other() -> None:
    others: list[Callable[[], Any]] = [
        *KINDS.values(),
        lambda: RotatingKVCache(max_size=WINDOW + 1),
        lambda: ChunkedKVCache(chunk_size=WINDOW + 1),
        lambda: QuantizedKVCache(group_size=64, bits=8),
        lambda: QuantizedKVCache(group_size=32, bits=4),
        lambda: ArraysCache(1),
        lambda: ArraysCache(2),
    ]
    for number, make in enumerate(others):
        cache = make()
        if isinstance(cache, ArraysCache):
            cache.cache = [mx.zeros((1, 2)) for _ in cache.cache]
        else:
            positions = mx.zeros((1, 1, 3, 64))
            cache.update_and_fetch(positions, positions)
        layout = describe(cache)
        assert [fits(other(), layout) for other in others] == [other == number for other in range(len(others))]

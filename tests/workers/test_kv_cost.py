"""What a row's KV is said to take, against what mlx-lm's caches take."""

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from pomona.workers.kv_cost import STEP, KVCost, KVWindow
from pomona.workers.kv_measure import PROBE, kv_cost, measure_kv_cost
from tests.support.tiny_model import FAMILIES
from tests.workers.engines import WINDOW, tiny

CHUNK = 32
HEADS, SIZE = 2, 64
BYTES = 2 * HEADS * SIZE * 2
"""Keys and values of one token in one layer of float16."""


def filled(cache: Any, tokens: int = PROBE) -> Any:
    new = mx.zeros((1, HEADS, tokens, SIZE), dtype=mx.float16)
    cache.update_and_fetch(new, new)
    return cache


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tokens", [1, 40, 300])
def test_a_row_of_any_family_takes_no_more_than_its_cost(family: str, tokens: int) -> None:
    model = tiny(family).model
    cost = measure_kv_cost(model, CHUNK)
    caches = make_prompt_cache(model)
    for begin in range(0, tokens, CHUNK):
        model(mx.zeros((1, min(CHUNK, tokens - begin)), dtype=mx.int32), cache=caches)
        mx.eval([cache.state for cache in caches])
        taken = sum(cache.nbytes for cache in caches)
        assert taken <= cost.bytes_for(min(begin + CHUNK, tokens)), "more is taken than was said"
    assert cost.bytes_for(tokens) <= 2 * taken + cost.bytes_for(CHUNK), "the cost is far too high"


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_plain_attention_costs_what_its_buffers_take_to_the_byte(family: str) -> None:
    model = tiny(family).model
    caches = make_prompt_cache(model)
    model(mx.zeros((1, 300), dtype=mx.int32), cache=caches)
    assert measure_kv_cost(model, CHUNK).bytes_for(300) == sum(cache.nbytes for cache in caches)


def test_sliding_layers_stop_growing_and_full_ones_do_not() -> None:
    cost = measure_kv_cost(tiny("gemma3_text").model, CHUNK)
    (window,) = cost.windows
    assert window.tokens == WINDOW + CHUNK
    assert cost.per_token > 0
    assert cost.bytes_for(10 * STEP) - cost.bytes_for(9 * STEP) == STEP * cost.per_token


def test_recurrent_state_is_paid_once() -> None:
    cost = measure_kv_cost(tiny("qwen3_next").model, CHUNK)
    assert cost.fixed > 0
    assert cost.bytes_for(STEP) == cost.fixed + STEP * cost.per_token


def test_quantised_keys_count_with_their_scales_and_biases() -> None:
    cost = kv_cost([filled(QuantizedKVCache(group_size=64, bits=8))], CHUNK)
    assert cost == KVCost(per_token=2 * HEADS * (SIZE + 2 * 2))


def test_each_kind_of_cache_falls_in_its_class() -> None:
    state = ArraysCache(2)
    state[0] = mx.zeros((1, 5), dtype=mx.float32)
    caches = [
        CacheList(filled(KVCache()), filled(RotatingKVCache(100))),
        filled(RotatingKVCache(100)),
        filled(ChunkedKVCache(200)),
        KVCache(),  # a layer that uses another's
        state,
    ]
    assert kv_cost(caches, CHUNK) == KVCost(
        fixed=20, per_token=BYTES, windows=(KVWindow(100 + CHUNK, 2 * BYTES), KVWindow(200 + CHUNK, BYTES))
    )


def test_a_kind_without_keys_is_taken_to_grow_with_each_token() -> None:
    class Odd:
        nbytes = PROBE * 10 + 1

    assert kv_cost([Odd()], CHUNK) == KVCost(per_token=11)


@given(st.integers(0, 10**6), st.integers(1, 5000), st.integers(0, 99), st.integers(0, 99))
def test_the_longest_row_fits_and_no_longer_one_does(budget: int, most: int, fixed: int, per_token: int) -> None:
    cost = KVCost(fixed=fixed, per_token=per_token)
    tokens = cost.tokens_within(budget, most)
    assert 0 <= tokens <= most
    assert tokens == 0 or cost.bytes_for(tokens) <= budget
    assert tokens == most or cost.bytes_for(tokens + 1) > budget


@given(
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.integers(0, 99),
    st.integers(0, 99),
    st.lists(st.builds(KVWindow, st.integers(1, 3000), st.integers(1, 99)), max_size=3),
)
def test_the_cost_never_falls_and_covers_every_token(
    few: int, more: int, fixed: int, per_token: int, windows: list[KVWindow]
) -> None:
    cost = KVCost(fixed=fixed, per_token=per_token, windows=tuple(windows))
    assert cost.bytes_for(few) <= cost.bytes_for(few + more)
    least = sum(min(few, window.tokens) * window.bytes_per_token for window in windows)
    assert cost.bytes_for(few) >= fixed + few * per_token + least

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from pomona.cache.layout import Dtype, KVLayout, LayerLayout, plain
from pomona.workers import blocks
from pomona.workers.block_file import BlockError, BlockFormat
from pomona.workers.blocks import extract, layout_of, supports
from pomona.workers.layers import UnsupportedCacheError, holds, is_state, leaves, slices, state

SHAPES = ((2, 8, 4), (3, 4, 4))
"""Heads, and dimensions of keys and values."""


def layers_of(dtype: Dtype = "float32") -> tuple[LayerLayout, ...]:
    return tuple(plain(*shape, dtype) for shape in SHAPES)


NOTHING = memoryview(b"")


def random_caches(tokens: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> list[Any]:
    """Two plain caches of different shapes that hold `tokens` random tokens, handed over in ragged pieces."""
    keys = mx.random.split(mx.random.key(seed), 4)
    caches = [KVCache() for _ in SHAPES]
    for number, ((heads, key_dim, value_dim), cache) in enumerate(zip(SHAPES, caches, strict=True)):
        k = mx.random.normal((1, heads, tokens, key_dim), key=keys[2 * number]).astype(dtype)
        v = mx.random.normal((1, heads, tokens, value_dim), key=keys[2 * number + 1]).astype(dtype)
        cut = tokens // 3
        for piece in (slice(0, cut), slice(cut, tokens)):
            cache.update_and_fetch(k[:, :, piece], v[:, :, piece])
    return caches


def bits(array: mx.array) -> bytes:
    return bytes(memoryview(mx.contiguous(array).view(mx.uint8)))


def held(caches: list[Any]) -> list[bytes]:
    return [bits(array[:, :, : cache.offset]) for cache in caches for array in (cache.keys, cache.values)]


@pytest.mark.parametrize(
    ("dtype", "name"), [(mx.float32, "float32"), (mx.float16, "float16"), (mx.bfloat16, "bfloat16")]
)
def test_keys_and_values_come_back_to_the_bit(dtype: mx.Dtype, name: Dtype) -> None:
    caches = random_caches(300, dtype)
    layout = layout_of(caches)
    assert layout == KVLayout(layers_of(name))
    form = BlockFormat(layout, 32)
    payloads = [memoryview(extract(caches, 32 * block, form)) for block in range(9)]
    restored: list[Any] = [KVCache(), KVCache()]
    assert blocks.restore(payloads, NOTHING, form, restored) == 288
    for cache in caches:
        cache.trim(12)
    assert held(restored) == held(caches)
    assert [(cache.keys.dtype, cache.values.dtype) for cache in restored] == [(dtype, dtype)] * 2


def test_special_values_keep_their_bits() -> None:
    pattern = np.arange(2**16, dtype=np.uint16).reshape(1, 1, 256, 256)
    cache = KVCache()
    both = mx.array(pattern).view(mx.bfloat16)
    cache.update_and_fetch(both, both)
    form = BlockFormat(KVLayout((plain(1, 256, 256, "bfloat16"),)), 256)
    payload = extract([cache], 0, form)
    assert bytes(payload) == 2 * pattern.tobytes()
    again = KVCache()
    blocks.restore([memoryview(payload)], NOTHING, form, [again])
    assert held([again]) == held([cache])


def test_a_payload_is_a_copy() -> None:
    caches = random_caches(64)
    form = BlockFormat(KVLayout(layers_of()), 32)
    before = bytes(extract(caches, 0, form))
    payload = extract(caches, 0, form)
    for cache in caches:
        cache.keys[:] = 0
    mx.eval([cache.keys for cache in caches])
    assert bytes(payload) == before
    assert bytes(extract(caches, 0, form)) != before


def test_tokens_or_layouts_that_the_caches_do_not_have_are_refused() -> None:
    caches = random_caches(40)
    layout = KVLayout(layers_of())
    with pytest.raises(BlockError, match="tokens 32 to 64"):
        extract(caches, 32, BlockFormat(layout, 32))
    for other in (
        KVLayout(layers_of("float16")),
        KVLayout(layers_of()[:1]),
        KVLayout(layers_of()[::-1]),
    ):
        with pytest.raises(BlockError, match="layout"):
            extract(caches, 0, BlockFormat(other, 32))


def test_caches_of_known_kinds_are_supported_lists_by_their_members() -> None:
    assert supports([KVCache(), QuantizedKVCache(), CacheList(ArraysCache(2), RotatingKVCache(max_size=16))])
    assert not supports([])
    assert not supports([KVCache(), BatchKVCache([0])])
    assert not supports([CacheList(KVCache(), RotatingKVCache(max_size=16, keep=4))])


def test_what_has_no_layout_says_why() -> None:
    two_rows, wide = KVCache(), KVCache()
    two_rows.update_and_fetch(mx.zeros((2, 1, 4, 4)), mx.zeros((2, 1, 4, 4)))
    wide.update_and_fetch(mx.zeros((1, 1, 4, 4), mx.int64), mx.zeros((1, 1, 4, 4), mx.int64))
    half = ArraysCache(2)
    half[0] = mx.zeros((1, 3))
    for caches, why in (
        ([], "there is no cache"),
        ([*random_caches(4), KVCache()], "cache 2: KVCache is empty"),
        ([two_rows], "cache 0: keys has the shape"),
        ([wide], "cache 0: keys is of mlx.core.int64"),
        ([half], "cache 0: state1 is not set"),
        ([BatchKVCache([0])], "cache 0: BatchKVCache is of no kind"),
        ([RotatingKVCache(max_size=16, keep=4)], "cache 0: RotatingKVCache keeps its first 4 tokens"),
    ):
        with pytest.raises(UnsupportedCacheError, match=why):
            layout_of(caches)


def mixture(tokens: int, seed: int = 0) -> list[Any]:
    """A cache of every kind behind `tokens` tokens, some in lists."""
    keys = iter(mx.random.split(mx.random.key(seed), 10))
    caches = fresh_mixture()
    for cache in leaves(caches):
        if isinstance(cache, ArraysCache):
            cache[0] = mx.random.normal((1, 3, 7), key=next(keys)).astype(mx.bfloat16)  # the next is not aligned
            cache[1] = mx.random.normal((1, 2, 4, 4), key=next(keys))
        else:
            k, v = (mx.random.normal((1, 2, tokens, 32), key=next(keys)).astype(mx.bfloat16) for _ in range(2))
            cache.update_and_fetch(k, v)
    return caches


def fresh_mixture() -> list[Any]:
    return [
        CacheList(ArraysCache(2), KVCache()),
        RotatingKVCache(max_size=20),
        QuantizedKVCache(group_size=32, bits=4),
        ChunkedKVCache(chunk_size=24),
    ]


def continuation(caches: list[Any]) -> list[bytes]:
    return [
        bits(array) for cache in leaves(caches) for array in (state(cache) if is_state(cache) else slices(cache, 0, 48))
    ]


def test_every_kind_of_cache_comes_back_to_the_bit_from_slices_and_the_last_state() -> None:
    whole = mixture(48)
    layout = layout_of(whole)
    form = BlockFormat(layout, 16)
    assert [layer.kind for layer in layout.layers] == ["arrays", "kv", "rotating", "quantized", "chunked"]
    assert [(layer.span, layer.group_size, layer.bits) for layer in layout.layers[2:]] == [
        (20, 0, 0),
        (0, 32, 4),
        (24, 0, 0),
    ]
    payload = extract(whole, 32, form)
    assert len(payload) == form.payload_bytes(48)
    with pytest.raises(BlockError, match="tokens 16 to 32"):
        extract(whole, 16, form)
    # The slices of the first blocks do not need their state.
    parts = [
        np.concatenate([np.array(part.view(mx.uint8)).reshape(-1) for part in slices(cache, start, start + 16)])
        for start in (0, 16)
        for cache in leaves(whole)
        if not is_state(cache)
    ]
    first = [memoryview(np.concatenate(parts[at : at + 2]).tobytes()) for at in (0, 2)]
    again = fresh_mixture()
    last = memoryview(payload)
    payloads = [*first, last[: form.slice_bytes]]
    assert blocks.restore(payloads, last[form.slice_bytes :], form, again) == 48
    assert continuation(again) == continuation(whole)
    assert layout_of(again) == layout
    assert all(holds(cache, 48) for cache in leaves(again))

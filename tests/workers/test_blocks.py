from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from pomona.cache.layout import KVLayout, LayerLayout
from pomona.workers import blocks
from pomona.workers.block_file import BlockError, BlockFormat
from pomona.workers.blocks import extract, layout_of, supports

LAYERS = (LayerLayout(2, 8, 4), LayerLayout(3, 4, 4))


def random_caches(tokens: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> list[Any]:
    """Two plain caches of different shapes that hold `tokens` random tokens, handed over in ragged pieces."""
    keys = mx.random.split(mx.random.key(seed), 4)
    caches = [KVCache() for _ in LAYERS]
    for number, (layer, cache) in enumerate(zip(LAYERS, caches, strict=True)):
        k = mx.random.normal((1, layer.heads, tokens, layer.key_dim), key=keys[2 * number]).astype(dtype)
        v = mx.random.normal((1, layer.heads, tokens, layer.value_dim), key=keys[2 * number + 1]).astype(dtype)
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
def test_keys_and_values_come_back_to_the_bit(dtype: mx.Dtype, name: Any) -> None:
    caches = random_caches(300, dtype)
    layout = layout_of(caches)
    assert layout == KVLayout(name, LAYERS)
    assert layout is not None
    form = BlockFormat(layout, 32)
    payloads = [memoryview(extract(caches, 32 * block, form)) for block in range(9)]
    restored: list[Any] = [KVCache(), KVCache()]
    assert blocks.restore(payloads, form, restored) == 288
    for cache in caches:
        cache.trim(12)
    assert held(restored) == held(caches)
    assert [(cache.keys.dtype, cache.values.dtype) for cache in restored] == [(dtype, dtype)] * 2
    grown = [cache.keys.shape[2] for cache in restored]
    assert all(tokens % KVCache.step == 0 for tokens in grown), "mlx-lm's own allocation steps"


def test_special_values_keep_their_bits() -> None:
    pattern = np.arange(2**16, dtype=np.uint16).reshape(1, 1, 256, 256)
    cache = KVCache()
    both = mx.array(pattern).view(mx.bfloat16)
    cache.update_and_fetch(both, both)
    form = BlockFormat(KVLayout("bfloat16", (LayerLayout(1, 256, 256),)), 256)
    payload = extract([cache], 0, form)
    assert bytes(payload) == 2 * pattern.tobytes()
    again = KVCache()
    blocks.restore([memoryview(payload)], form, [again])
    assert held([again]) == held([cache])


def test_a_payload_is_a_copy() -> None:
    caches = random_caches(64)
    form = BlockFormat(KVLayout("float32", LAYERS), 32)
    before = bytes(extract(caches, 0, form))
    payload = extract(caches, 0, form)
    for cache in caches:
        cache.keys[:] = 0
    mx.eval([cache.keys for cache in caches])
    assert bytes(payload) == before
    assert bytes(extract(caches, 0, form)) != before


def test_tokens_or_layouts_that_the_caches_do_not_have_are_refused() -> None:
    caches = random_caches(40)
    layout = KVLayout("float32", LAYERS)
    with pytest.raises(BlockError, match="tokens 32 to 64"):
        extract(caches, 32, BlockFormat(layout, 32))
    for other in (
        layout._replace(dtype="float16"),
        layout._replace(layers=LAYERS[:1]),
        layout._replace(layers=LAYERS[::-1]),
    ):
        with pytest.raises(BlockError, match="layout"):
            extract(caches, 0, BlockFormat(other, 32))


def test_only_plain_caches_are_supported() -> None:
    assert supports([KVCache(), KVCache()])
    assert not supports([])
    assert not supports([KVCache(), RotatingKVCache(max_size=16)])
    assert not supports([QuantizedKVCache()])
    assert layout_of([KVCache()]) is None, "an empty cache has no layout yet"
    assert layout_of([RotatingKVCache(max_size=16)]) is None


def test_rows_or_dtypes_that_differ_have_no_layout() -> None:
    mixed = random_caches(4)
    mixed[1].values = mixed[1].values.astype(mx.float16)
    assert layout_of(mixed) is None
    two_rows = KVCache()
    two_rows.update_and_fetch(mx.zeros((2, 1, 4, 4)), mx.zeros((2, 1, 4, 4)))
    assert layout_of([two_rows]) is None
    integers = KVCache()
    integers.update_and_fetch(mx.zeros((1, 1, 4, 4), mx.int32), mx.zeros((1, 1, 4, 4), mx.int32))
    assert layout_of([integers]) is None

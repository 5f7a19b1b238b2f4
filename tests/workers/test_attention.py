import random
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import base, llama
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from pomona.workers import attention
from pomona.workers.attention import grouped_attention, install
from pomona.workers.length_groups import group_rows
from pomona.workers.models import cpu
from pomona.workers.slots import CPU_CALL, GPU_CALL, SlotCache, SlotLengths
from tests.support.tiny_model import FAMILIES
from tests.workers.engines import tiny
from tests.workers.rows_bench import CLOSE, Bench

CALL = CPU_CALL if mx.default_device() == mx.cpu else GPU_CALL
FAR = 4 * CALL

Call = tuple[int, int, bool]
"""Rows, reach, and whether there was a mask."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What the attention of each group is called with."""
    seen: list[Call] = []
    own = attention._attend

    def counted(queries: mx.array, keys: mx.array, values: mx.array, *rest: Any, **named: Any) -> mx.array:
        seen.append((keys.shape[0], keys.shape[2], rest[2] is not None))
        return own(queries, keys, values, *rest, **named)

    monkeypatch.setattr(attention, "_attend", counted)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_very_different_length_compute_what_they_compute_alone(family: str) -> None:
    bench = Bench(family)
    for length in (1, 3, 40, FAR, 5):
        last = bench.join(f"r{length}", length)
    for _ in range(3):
        bench.step()
    bench.batch.leave([bench.batch.rows[1]])
    bench.step()
    bench.join("late", 2 * FAR)
    for _ in range(2):
        bench.step()
    bench.batch.leave([last, bench.batch.rows[0]])
    for _ in range(2):
        bench.step()


@pytest.mark.parametrize("family", FAMILIES)
def test_each_full_attention_layer_takes_one_call_for_each_group(family: str, calls: list[Call]) -> None:
    bench = Bench(family)
    for length in (9, 9, 9, FAR, 9, 20):
        bench.join(f"{len(bench.alone)}", length)
    layers = sum(type(cache) is SlotCache for cache in bench.batch._caches.forms)
    assert layers
    calls.clear()
    for step in range(2):
        mx.eval(bench.batch.forward())
        grouped = [call for call in calls if call[1] > 1 and call[0] in (1, 2, 3)]
        assert grouped == [(3, 9 + step, False), (1, FAR + step, False), (2, 20 + step, True)] * layers
        calls.clear()


def test_rows_of_one_length_take_one_call_without_a_mask(calls: list[Call]) -> None:
    bench = Bench("llama")
    for index in range(4):
        bench.join(f"{index}", 12)
    calls.clear()
    mx.eval(bench.batch.forward())
    assert calls == [(4, 12, False)] * 2


def test_rows_of_like_length_take_one_call(calls: list[Call]) -> None:
    bench = Bench("llama")
    for length in (12, 30, 20):
        bench.join(f"{length}", length)
    calls.clear()
    mx.eval(bench.batch.forward())
    assert calls == [(3, 30, True)] * 2


class Drawn:
    """One layer's KV in slots, and each row's own; 4 heads over 2, of 8 numbers."""

    def __init__(self, lengths: list[int]) -> None:
        self.shared = SlotLengths()
        self.cache = SlotCache(self.shared)
        self.alone = [KVCache() for _ in lengths]
        for own, length in zip(self.alone, lengths, strict=True):
            if length:
                own.update_and_fetch(*(mx.random.normal((1, 2, length, 8)) for _ in range(2)))
            self.cache.join(own)
            self.shared.lengths.append(length)
        self.shared.begin()

    def attend(self, tokens: int, mask: Callable[[int], Any], window: int | None = None, **named: Any) -> mx.array:
        """Grouped attention over all rows, which is what mlx-lm's gives for each row alone."""
        rows = len(self.alone)
        queries = mx.random.normal((rows, 4, tokens, 8))
        new = [mx.random.normal((rows, 2, tokens, 8)) for _ in range(2)]
        keys, values = self.cache.update_and_fetch(*new)
        together = grouped_attention(queries, keys, values, self.cache, 0.3, mask(tokens), **named)
        for row, own in enumerate(self.alone):
            allowed = base.create_causal_mask(tokens, own.offset, window)
            single = own.update_and_fetch(*(each[row : row + 1] for each in new))
            wanted = base.scaled_dot_product_attention(queries[row : row + 1], *single, own, 0.3, allowed, **named)
            assert mx.allclose(together[row : row + 1], wanted, atol=CLOSE, rtol=0).item(), row
        return together


RAGGED = [0, 3, FAR, FAR, FAR + 9, 40, 2 * FAR]


@pytest.mark.parametrize("tokens", [1, 2, 5])
@pytest.mark.parametrize("window", [None, 1, 4, 41, FAR + 1, 3 * FAR])
def test_windows_are_kept(tokens: int, window: int | None, calls: list[Call]) -> None:
    drawn = Drawn(RAGGED)
    assert len(drawn.shared.groups(tokens)) == 4
    drawn.attend(tokens, lambda count: drawn.cache.make_mask(count, window_size=window), window)
    assert [call[:2] for call in calls[:4]] == [
        (2, 3 + tokens),
        (3, FAR + 9 + tokens),
        (1, 40 + tokens),
        (1, 2 * FAR + tokens),
    ]


def test_only_groups_of_one_length_whose_window_holds_all_need_no_mask(calls: list[Call]) -> None:
    for window, masked in ((FAR + 1, [False, False, True]), (FAR, [False, True, True]), (None, [False] * 3)):
        drawn = Drawn([5, 5, FAR, 2 * FAR])
        calls.clear()
        drawn.attend(1, partial(drawn.cache.make_mask, window_size=window), window)
        assert [call[2] for call in calls[:3]] == masked


@pytest.mark.parametrize("own", [None, "causal"])
@pytest.mark.parametrize("lengths", [RAGGED, [5, 9], [6, 6]])
def test_a_models_own_mask_stands_for_what_each_row_may_see(own: str | None, lengths: list[int]) -> None:
    Drawn(lengths).attend(1, lambda _: own)
    if own:
        Drawn(lengths).attend(3, lambda _: own)


def test_no_mask_for_several_tokens_lets_them_see_all() -> None:
    drawn = Drawn([6, 6])
    queries, new = mx.random.normal((2, 4, 3, 8)), mx.random.normal((2, 2, 3, 8))
    keys, values = drawn.cache.update_and_fetch(new, new)
    result = grouped_attention(queries, keys, values, drawn.cache, 0.3, None)
    assert mx.allclose(
        result, base.scaled_dot_product_attention(queries, keys, values, None, 0.3, None), atol=CLOSE
    ).item()


@pytest.mark.parametrize("heads", [1, 4])
def test_additive_masks_are_cut_like_others(heads: int) -> None:
    drawn = Drawn(RAGGED)

    def mask(tokens: int) -> mx.array:
        allowed = drawn.shared.mask(tokens, None)
        assert allowed is not None
        return mx.broadcast_to(mx.where(allowed, 0.0, -1e9), (len(RAGGED), heads, tokens, allowed.shape[-1]))

    drawn.attend(2, mask)
    drawn.shared.advance(2)
    drawn.shared.begin()
    drawn.attend(1, mask)


def test_a_mask_that_is_the_same_for_all_rows_is_not_cut_along_them(calls: list[Call]) -> None:
    drawn = Drawn([4, FAR])
    seen = mx.ones((1, 1, 1, FAR + 1), dtype=mx.bool_)
    seen[..., 2] = False
    queries, new = mx.random.normal((2, 4, 1, 8)), mx.random.normal((2, 2, 1, 8))
    keys, values = drawn.cache.update_and_fetch(new, new)
    heads = mx.repeat(seen[0], 4, axis=0)
    heads[1:, 0, 3] = False
    for mask in (seen, seen[0], seen[0, 0], heads):
        calls.clear()
        result = grouped_attention(queries, keys, values, drawn.cache, 0.3, mask)
        assert calls == [(1, 5, True), (1, FAR + 1, True)]
        for row, reach in enumerate((5, FAR + 1)):
            at = slice(row, row + 1)
            wanted = base.scaled_dot_product_attention(
                queries[at], keys[at, :, :reach], values[at, :, :reach], None, 0.3, mask[..., :reach]
            )
            assert mx.allclose(result[at], wanted, atol=CLOSE).item()


def test_sinks_reach_every_group() -> None:
    drawn = Drawn(RAGGED)
    sinks = mx.array([3.0, -1.0, 0.5, 2.0])
    mx.random.seed(7)
    with_sinks = drawn.attend(1, lambda count: drawn.cache.make_mask(count), sinks=sinks)
    mx.random.seed(7)
    without = Drawn(RAGGED).attend(1, lambda _: None)
    assert not mx.allclose(with_sinks, without, atol=CLOSE).item()


def test_quantised_caches_get_mlx_lms_own_attention() -> None:
    cache = QuantizedKVCache(group_size=32, bits=8)
    queries, new = mx.random.normal((1, 4, 3, 64)), mx.random.normal((1, 2, 3, 64))
    keys, values = cache.update_and_fetch(new, new)
    scaled = 1 * queries  # mlx-lm's scales in place
    result = grouped_attention(scaled, keys, values, cache=cache, scale=0.125, mask="causal")
    wanted = base.scaled_dot_product_attention(queries, keys, values, cache=cache, scale=0.125, mask="causal")
    assert mx.array_equal(result, wanted).item()


def test_keys_that_are_not_all_that_the_slots_hold_are_left_alone(calls: list[Call]) -> None:
    drawn = Drawn([4, FAR])
    new = mx.random.normal((2, 2, 1, 8))
    keys, values = drawn.cache.update_and_fetch(new, new)
    picked = keys[:, :, 2:12], values[:, :, 2:12]
    queries = mx.random.normal((2, 4, 1, 8))
    result = grouped_attention(queries, *picked, drawn.cache, 0.3, None)
    assert mx.array_equal(result, base.scaled_dot_product_attention(queries, *picked, None, 0.3, None)).item()
    single = grouped_attention(queries[:1], keys[:1], values[:1], drawn.cache, 0.3, None)
    assert single.shape == (1, 4, 1, 8)
    assert calls[-1] == (1, FAR + 1, False)


def test_groups_follow_the_rows(calls: list[Call]) -> None:
    shared = SlotLengths()
    shared.lengths = [5, FAR]
    shared.begin()
    assert [group.reach for group in shared.groups(1)] == [6, FAR + 1]
    shared.advance(3)
    shared.begin()
    assert [group.reach for group in shared.groups(2)] == [10, FAR + 5]
    shared.lengths.append(FAR)
    shared.begin()
    assert [(group.start, group.stop, group.reach) for group in shared.groups(1)] == [(0, 1, 9), (1, 3, FAR + 4)]
    shared.lengths = [8]
    shared.begin()
    assert [group[:3] for group in shared.groups(1)] == [(0, 1, 9)]


@pytest.mark.parametrize("seed", range(3))
def test_masks_are_cut_once_a_forward_and_anew_for_the_next(seed: int) -> None:
    source = random.Random(seed)
    shared = SlotLengths()
    shared.lengths = [source.choice([3, 40, FAR, 2 * FAR]) for _ in range(6)] + [FAR, 1]
    for _ in range(2):
        shared.begin()
        for window in (None, 7):
            mask = shared.mask(1, window)
            first = shared.group_masks(mask, 1)
            assert shared.group_masks(mask, 1) is first
            for group, part in zip(shared.groups(1), first, strict=True):
                assert part is None or part.shape == (group.stop - group.start, 1, 1, group.reach)
        assert [group[:2] for group in shared.groups(1)] == [group[:2] for group in group_rows(shared.lengths, CALL)]
        assert shared.group_masks(None, 2) == [None] * len(shared.groups(2))
        shared.advance(1)
        shared.lengths.append(9 * FAR)


@pytest.fixture
def modules() -> list[ModuleType]:
    names = {type(layer).__module__ for layer in tiny("llama").model.modules()}
    return [sys.modules[name] for name in names if hasattr(sys.modules[name], "scaled_dot_product_attention")]


def test_a_loaded_model_has_it_and_may_be_given_it_again(modules: list[ModuleType]) -> None:
    install(tiny("llama").model)
    assert [module.scaled_dot_product_attention for module in modules] == [grouped_attention]
    assert base.scaled_dot_product_attention is not grouped_attention
    assert attention.base is base


def test_layers_that_inherit_their_attention_have_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(llama.Attention):  # type: ignore[misc]  # mlx-lm has no types
        pass

    model = tiny("llama").model
    layer = Own(model.args)
    monkeypatch.setattr(llama, "scaled_dot_product_attention", base.scaled_dot_product_attention)
    install(layer)
    assert llama.scaled_dot_product_attention is grouped_attention


def test_an_attention_that_a_model_brings_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(*arguments: Any, **named: Any) -> mx.array:
        return mx.zeros(1)

    monkeypatch.setattr(llama, "scaled_dot_product_attention", own)
    install(tiny("llama").model)
    assert llama.scaled_dot_product_attention is own


def test_on_a_cpu_several_tokens_attend_by_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    own = cpu.attention

    def watched(queries: mx.array, *arguments: Any, **named: Any) -> mx.array:
        seen.append(queries.shape)
        return own(queries, *arguments, **named)

    monkeypatch.setattr(cpu, "attention", watched)
    for tokens, dtype, sinks in (
        (1, mx.float32, False),
        (3, mx.float16, False),
        (3, mx.float32, True),
        (3, mx.float32, False),
    ):
        queries = mx.random.normal((1, 4, tokens, 8)).astype(dtype)
        keys = mx.random.normal((1, 2, 9, 8)).astype(dtype)
        weights = mx.zeros(4).astype(dtype) if sinks else None
        ours = grouped_attention(queries, keys, keys, None, 0.5, "causal", weights)
        theirs = mx.fast.scaled_dot_product_attention(queries, keys, keys, scale=0.5, mask="causal", sinks=weights)
        assert mx.allclose(ours, theirs, atol=1e-2 if dtype == mx.float16 else 1e-5).item()
    assert seen == ([(1, 4, 3, 8)] if mx.default_device() == mx.cpu else [])

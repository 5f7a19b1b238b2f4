"""Long rows in buffers of their own, beside short ones in slots."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import make_prompt_cache

from pomona.workers.attention import grouped_attention, lets_rows_stand_apart
from pomona.workers.batch import Batch
from pomona.workers.row_buffers import RowBuffers
from pomona.workers.slot_buffers import STEP
from pomona.workers.slots import SlotCache, SlotLengths
from tests.workers.engines import tiny
from tests.workers.rows_bench import CLOSE, Bench

LONG = 12
PLAIN = ("llama", "qwen3")


def apart(bench: Bench) -> list[str]:
    """The rows that stand apart; every layer has as many."""
    shared = bench.batch._caches.shared
    caches = [cache for cache in bench.batch._caches.forms if isinstance(cache, SlotCache)]
    assert {len(cache.apart) for cache in caches} <= {shared.apart}
    return bench.names()[shared.in_slots :]


@pytest.mark.parametrize("family", PLAIN)
def test_rows_on_both_sides_compute_what_they_compute_alone(family: str) -> None:
    """They come in any order, short ones become long, and rows leave on both sides."""
    bench = Bench(family, LONG)
    bench.join("long", 30)
    bench.step()
    bench.join("short", 2)
    bench.join("longer", 41)
    soon = bench.join("soon long", 10)
    short = bench.join("short too", 3)
    assert (bench.names(), apart(bench)) == (["short", "soon long", "short too", "long", "longer"], ["long", "longer"])
    for _ in range(4):
        bench.step()
    assert (bench.names()[:2], apart(bench)) == (["short", "short too"], ["long", "longer", "soon long"])
    bench.batch.leave([short, bench.batch.rows[2]])
    assert (bench.names(), apart(bench)) == (["short", "longer", "soon long"], ["longer", "soon long"])
    bench.step()
    bench.batch.leave([soon])
    bench.join("late", 5)
    assert bench.names() == ["short", "late", "longer"]
    for _ in range(12):
        bench.step()
    assert (len(apart(bench)), bench.batch._caches.forms[0].keys) == (3, None)


def test_one_long_row_alone_stands_apart() -> None:
    bench = Bench("llama", LONG)
    row = bench.join("long", 20)
    for _ in range(3):
        bench.step()
    assert apart(bench) == ["long"]
    assert bench.batch.leave([row]) == []
    assert (bench.batch.nbytes, bench.batch._caches.shared.apart) == (0, 0)


def test_rows_that_become_long_in_one_step_all_get_their_own_buffers() -> None:
    bench = Bench("llama", LONG)
    for name in ("a", "b", "c", "d"):
        bench.join(name, LONG if name != "b" else 3)
    assert apart(bench) == []
    for _ in range(3):
        bench.step()
    assert (bench.names()[0], sorted(apart(bench))) == ("b", ["a", "c", "d"])


def test_short_rows_do_not_pay_for_the_length_of_a_long_one() -> None:
    bench = Bench("llama", LONG)
    bench.join("long", 5 * STEP)
    for index in range(7):
        bench.join(f"r{index}", 3)
    bench.step()
    token = sum(
        2 * cache.apart[0].keys.shape[1] * cache.apart[0].keys.shape[3] * 4 for cache in bench.batch._caches.forms
    )
    assert bench.batch.nbytes <= token * (8 * STEP + 6 * STEP)  # in slots of one length: 8 * 6 * STEP


def test_a_row_that_leaves_takes_its_buffers_along() -> None:
    bench = Bench("llama", LONG)
    bench.join("short", 2)
    row = bench.join("long", 30)
    for _ in range(3):
        bench.step()
    held = bench.batch.length_of(row)
    taken = bench.batch.extract(row)
    bench.batch.leave([row])
    bench.step()
    assert [cache.offset for cache in taken] == [held] * len(taken)
    token = mx.array([[row.last_token]])
    own = bench.loaded.model(token, cache=taken)
    assert mx.allclose(own, bench.loaded.model(token, cache=bench.alone["long"]), atol=CLOSE).item()


def test_what_a_row_came_with_is_not_written_to() -> None:
    bench = Bench("llama", LONG)
    caches: list[Any] = make_prompt_cache(bench.loaded.model)
    row = bench.join("long", 30)
    bench.loaded.model(mx.array([row.tokens[:-1]]), cache=caches)
    before = [mx.array(cache.keys) for cache in caches]
    mx.eval(before)
    other = Batch(bench.loaded.model, LONG)
    other.join(row, caches)
    mx.eval(other.forward())
    assert all(mx.array_equal(was, cache.keys).item() for was, cache in zip(before, caches, strict=True))


def test_buffers_grow_by_a_part_of_what_they_hold() -> None:
    buffers = RowBuffers(None, None)
    piece = mx.ones((1, 2, 3, 4))
    buffers.write(piece, piece, 0, 16)
    assert buffers.keys is not None
    assert buffers.keys.shape == (1, 2, 16, 4)
    for at in range(3, 160, 3):
        buffers.write(at * piece, piece, at, 16)
    assert buffers.keys.shape[2] in (160, 176)
    assert buffers.keys[0, 0, ::3, 0].tolist()[:53] == [1.0, *(float(at) for at in range(3, 159, 3))]  # type: ignore[union-attr,index]
    large = RowBuffers(mx.zeros((1, 1, 800, 1)), mx.zeros((1, 1, 800, 1)))
    large.write(mx.ones((1, 1, 1, 1)), mx.ones((1, 1, 1, 1)), 800, 16)
    assert large.keys is not None
    assert large.keys.shape[2] == 912


@pytest.mark.parametrize(
    ("family", "may"), [("llama", True), ("qwen3", True), ("gemma3_text", False), ("qwen3_next", False)]
)
def test_only_models_with_nothing_but_plain_attention_let_rows_stand_apart(family: str, may: bool) -> None:
    assert lets_rows_stand_apart(tiny(family).model) is may


class Halving(nn.Module):
    """Attention over keys that the model changed once more."""

    def __init__(self, model: Any, changed: bool) -> None:
        super().__init__()
        self.layers = model.layers
        self.changed = changed

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        new = mx.ones((tokens.shape[0], 2, tokens.shape[1], 4))
        for each in cache:
            keys, values = each.update_and_fetch(new, new)
            if self.changed:
                keys = keys / 2
            new = grouped_attention(new, keys, values, each, 1.0, None)
        return new


@pytest.mark.parametrize("changed", [False, True])
def test_a_model_that_changes_what_its_cache_holds_keeps_all_rows_in_slots(changed: bool) -> None:
    assert lets_rows_stand_apart(Halving(tiny("llama").model, changed)) is not changed


def test_a_model_with_attention_of_its_own_keeps_all_rows_in_slots() -> None:
    model = Halving(tiny("llama").model, False)
    layers = make_prompt_cache(model)
    assert len(layers) > 1
    assert not lets_rows_stand_apart(OwnAttention(model))


def test_a_model_whose_layers_share_kv_keeps_all_rows_in_slots() -> None:
    model = OwnAttention(tiny("llama").model, share=True)
    assert not lets_rows_stand_apart(model)
    shared = SlotLengths()
    shared.lengths = [2, 0]
    shared.begin()
    cache = SlotCache(shared)
    with pytest.raises(ValueError, match="before any was written"):
        cache.keys_and_values()
    keys, values = cache.update_and_fetch(mx.ones((2, 2, 1, 4)), 2 * mx.ones((2, 2, 1, 4)))
    again, other = cache.keys_and_values()
    assert again is keys
    assert mx.array_equal(other, values).item()


class OwnAttention(nn.Module):
    def __init__(self, model: Any, share: bool = False) -> None:
        super().__init__()
        self.layers = model.layers
        self.share = share

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        new = mx.ones((tokens.shape[0], 2, tokens.shape[1], 4))
        for each in cache:
            keys, _ = each.update_and_fetch(new, new)
            if self.share:
                keys, _ = each.keys_and_values()
            new = new + keys.sum(axis=2, keepdims=True)
        return new

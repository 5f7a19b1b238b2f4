import random

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from pomona.workers.batch import Batch
from pomona.workers.forms.kinds import batchable
from pomona.workers.forms.ring import RingCache
from pomona.workers.slots import SlotCache
from tests.support.tiny_model import FAMILIES
from tests.workers.engines import tiny
from tests.workers.lone_cache import LoneCache, LoneCaches
from tests.workers.rows_bench import CLOSE, Bench


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_every_family_compute_what_they_compute_alone(family: str) -> None:
    """Prompts shorter and longer than the sliding window, and answers that grow beyond it."""
    bench = Bench(family)
    first = bench.join("one token", 1)
    bench.join("long", 41)
    for _ in range(3):
        bench.step()
    bench.join("short", 7)
    bench.join("window", 17)
    for _ in range(10):
        bench.step()
    bench.batch.leave([first])
    bench.join("later", 2)
    for _ in range(12):
        bench.step()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_may_leave_before_its_first_step(family: str) -> None:
    bench = Bench(family)
    bench.join("long", 20)
    bench.step()
    one, two = bench.join("one token", 1), bench.join("another", 1)
    bench.batch.leave([one])
    bench.step()
    bench.batch.leave([two, bench.batch.rows[0]])
    assert (bench.names(), bench.batch.nbytes) == ([], 0)
    bench.join("late", 5)
    bench.step()


def test_the_last_rows_move_into_the_holes_and_the_others_stay() -> None:
    bench = Bench("llama")
    rows = [bench.join(f"r{index}", 3 + index) for index in range(5)]
    bench.step()
    assert bench.batch.leave([]) == [0, 1, 2, 3, 4]
    assert bench.batch.leave([rows[1]]) == [0, 4, 2, 3]
    assert bench.names() == ["r0", "r4", "r2", "r3"]
    bench.step()
    assert bench.batch.leave([rows[3], rows[0]]) == [2, 1]
    assert bench.names() == ["r2", "r4"]
    bench.step()
    assert bench.batch.leave([rows[2], rows[4]]) == []
    assert bench.batch.inputs.shape == (0,)


@pytest.mark.parametrize("gone", range(1, 31))
def test_every_choice_of_rows_may_leave(gone: int) -> None:
    bench = Bench("llama")
    rows = [bench.join(f"r{index}", 3 + index) for index in range(5)]
    before = bench.names()
    order = bench.batch.leave([row for index, row in enumerate(rows) if gone >> index & 1])
    assert [before[index] for index in order] == bench.names()
    assert set(bench.names()) == {f"r{index}" for index in range(5) if not gone >> index & 1}
    bench.step()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_taken_out_goes_on_alone(family: str) -> None:
    bench = Bench(family)
    for length in (3, 30):
        bench.join(f"r{length}", length)
    for _ in range(4):
        bench.step()
    for row in bench.batch.rows:
        assert bench.batch.length_of(row) == len(row.tokens) - 1
        taken = bench.batch.extract(row)
        token = mx.array([[row.last_token]])
        own = bench.loaded.model(token, cache=taken)
        assert mx.allclose(own, bench.loaded.model(token, cache=bench.alone[row.request.id]), atol=CLOSE).item()


def test_each_kind_of_cache_has_its_form() -> None:
    bench = Bench("gemma3_text")
    bench.join("r", 5)
    kinds = [type(cache) for cache in make_prompt_cache(bench.loaded.model)]
    assert kinds == [RotatingKVCache, KVCache] * 2
    forms = bench.batch._caches.forms
    assert [type(form) for form in forms] == [RingCache, SlotCache] * 2
    assert bench.batch.nbytes == sum(form.nbytes for form in forms) > 0


def test_a_model_whose_caches_have_no_batch_form_takes_one_row() -> None:
    model = LoneCaches(tiny().model)
    assert batchable(make_prompt_cache(tiny().model))
    assert not batchable(make_prompt_cache(model))
    assert not batchable([*make_prompt_cache(tiny().model), LoneCache()])
    assert (Batch(tiny().model).width_limit, Batch(model).width_limit) == (None, 1)


def test_a_batch_says_how_many_drafts_it_verifies() -> None:
    bounds = {family: Batch(tiny(family).model).max_drafts for family in FAMILIES}
    assert bounds == {"llama": None, "gemma3_text": 31, "qwen3": None, "qwen3_next": None}
    assert all(Batch(tiny(family).model).refusal == "" for family in FAMILIES)
    refused = Batch(LoneCaches(tiny().model))
    assert (refused.max_drafts, refused.refusal) == (0, "tokens cannot be cut off a LoneCache")


def test_drafts_that_a_batch_cannot_verify_are_refused() -> None:
    bench = Bench("gemma3_text")
    bench.join("a", 3)
    bench.join("b", 30)
    for drafts, message in (
        ([[1]], "1 lists of drafts for 2 rows"),
        ([[], [1] * 32], "32 drafts where one forward takes 31"),
    ):
        with pytest.raises(ValueError, match=message):
            bench.batch.verify(drafts)
    bench.verify([[], [1] * 31])
    lone = Batch(LoneCaches(tiny().model))
    row = bench.batch.rows[0]
    lone.join(row, make_prompt_cache(LoneCaches(tiny().model)))
    with pytest.raises(ValueError, match="tokens cannot be cut off a LoneCache"):
        lone.verify([[1]])


def test_a_row_holds_what_it_kept_and_its_last_token_is_its_next_input() -> None:
    bench = Bench("llama")
    one, two = bench.join("one", 3), bench.join("two", 30)
    bench.batch.verify([[7, 8], [9]])
    assert [bench.batch.length_of(row) for row in (one, two)] == [2, 29]
    for token in (7, 40):
        one.commit(token)
    two.commit(50)
    bench.batch.settle([2, 1])
    assert [bench.batch.length_of(row) for row in (one, two)] == [4, 30] == [len(one.tokens) - 1, len(two.tokens) - 1]
    assert bench.batch.inputs.tolist() == [40, 50]


def test_state_that_went_back_is_told_by_the_length() -> None:
    """What is stored of a row that leaves is what its caches hold, to the token."""
    bench, source = Bench("qwen3_next"), random.Random(1)
    row = bench.join("r", 9)
    bench.verify([[7, 8]])
    bench.settle({"r": [7, 8]}, {"r": 2}, source)
    assert (bench.batch.length_of(row), len(row.tokens)) == (8, 11)
    bench.goes_on_alone(row)
    bench.step()
    assert bench.batch.length_of(row) == 11
    bench.goes_on_alone(row)


def test_rows_that_become_long_stand_apart_once_they_are_settled() -> None:
    bench, source = Bench("llama", 12), random.Random(2)
    for name, length in (("a", 11), ("b", 3), ("c", 12)):
        bench.join(name, length)
    bench.verify([[1, 2], [3], [4]])
    assert bench.names() == ["a", "b", "c"]
    bench.settle({"a": [1, 2], "b": [3], "c": [4]}, {"a": 3, "b": 2, "c": 1}, source)
    assert (bench.names()[0], bench.batch._caches.shared.apart) == ("b", 2)
    bench.verify([[1, 2]] * 3)
    assert bench.batch.rows[0].last_token == bench.batch.inputs[0].item()


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_equal_width_verify_to_the_bit_what_they_compute_alone(family: str) -> None:
    """On a CPU, whatever their lengths are."""
    bench = Bench(family)
    for length in (30, 7, 19, 1):
        bench.join(f"r{length}", length)
    flat = bench.batch.verify([[5, 6]] * 4).reshape(4, 3, -1)
    for row, logits in zip(bench.batch.rows, flat, strict=True):
        alone = bench.model(mx.array([[row.last_token, 5, 6]]), cache=bench.alone[row.request.id])[0]
        difference = mx.abs(logits - alone).max().item()
        assert difference <= (0 if mx.default_device() == mx.cpu else CLOSE)

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

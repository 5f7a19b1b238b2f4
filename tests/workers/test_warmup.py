import pytest

from pomona.workers.messages import WorkerStats
from pomona.workers.warmup import SIZES, warm_up
from tests.support.tiny_model import FAMILIES
from tests.workers.engines import any_request, ask, in_memory, make_engine, run, solo, tiny
from tests.workers.faulty_models import Watched
from tests.workers.lone_cache import LoneCaches


@pytest.mark.parametrize("family", FAMILIES)
def test_a_warm_engine_is_idle_has_counted_nothing_and_serves_as_a_cold_one(family: str) -> None:
    engine = make_engine(tiny(family))
    said: list[str] = []
    warm_up(engine, len(tiny(family).vocabulary), said.append)
    assert said == ["warming up"]
    assert not engine.busy
    stats = engine.stats()
    assert stats == WorkerStats(memory_bytes=stats.memory_bytes)
    requests = [any_request(seed) for seed in range(3)]
    outcomes = run(engine, requests)
    for request in requests:
        assert outcomes[request.id] == solo(tiny(family), request)


def test_chunks_of_several_sizes_and_decode_steps_of_both_laws_have_run() -> None:
    model = Watched(tiny().model)
    engine = make_engine(tiny(), model=model, prefill_chunk=256, stall_s=60.0)
    cost = engine.meter.prefill_cost
    warm_up(engine, len(tiny().vocabulary), lambda text: None)
    assert {size - 1 for size in SIZES} <= set(model.widths)
    assert model.widths.count(1) >= 3
    # What is known of the cost is what the calibration said, not the first uses before it.
    assert engine.meter.prefill_cost is not cost
    assert engine.meter.prefill_cost.line() != cost.line()


def test_nothing_of_the_warm_up_is_restored_for_a_client() -> None:
    engine = make_engine(tiny(), prefixes=in_memory(1 << 30))
    warm_up(engine, len(tiny().vocabulary), lambda text: None)
    for salt in ("", *(f"warm-up-{size}" for size in SIZES)):
        run(engine, [ask(f"r{salt}", tuple(range(1, 40)), salt=salt, max_tokens=1)])
        assert engine.stats().cached_tokens == 0


def test_a_model_that_takes_one_row_is_warmed_as_well() -> None:
    engine = make_engine(tiny(), model=LoneCaches(tiny().model))
    warm_up(engine, len(tiny().vocabulary), lambda text: None)
    assert not engine.busy

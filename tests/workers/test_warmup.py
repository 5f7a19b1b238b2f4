import pytest

from pomona.workers.messages import WorkerStats
from pomona.workers.warmup import PROMPT_TOKENS, warm_up
from tests.support.tiny_model import FAMILIES
from tests.workers.engines import any_request, make_engine, run, solo, tiny
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


def test_prefill_and_decode_have_both_run_and_the_prefill_rate_is_measured() -> None:
    model = Watched(tiny().model)
    engine = make_engine(tiny(), model=model, stall_s=1.0)
    assumed = engine.meter.prefill_rate
    warm_up(engine, len(tiny().vocabulary), lambda text: None)
    assert sum(width for width in model.widths if width > 1) == 2 * (PROMPT_TOKENS - 1) - 16
    assert model.widths.count(1) >= 3
    assert engine.meter.prefill_rate != assumed


def test_a_model_that_takes_one_row_is_warmed_as_well() -> None:
    engine = make_engine(tiny(), model=LoneCaches(tiny().model))
    warm_up(engine, len(tiny().vocabulary), lambda text: None)
    assert not engine.busy

"""A client gives up during a long prompt and asks again: what was computed until then is not computed twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pomona.runtime.wire import replace
from pomona.workers.engine import Engine
from pomona.workers.messages import Request, RequestId
from tests.cache.house import CacheHouse
from tests.workers.engines import ask, in_memory, make_engine, run, solo, tiny, words
from tests.workers.test_engine_blocks import BLOCK, engine_of, stored

PROMPT = words(3, 401)
FIRST = ask("first", PROMPT, max_tokens=4)
AGAIN = replace(FIRST, id=RequestId("again"))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CacheHouse]:
    with CacheHouse(tmp_path / "kv") as house:
        yield house


def give_up_at(engine: Engine, request: Request, share: float) -> int:
    """Cancel once this share of the prompt is computed; how many tokens that were in the end."""
    engine.assign(request)
    while engine.progress().get(request.id, 0) < share * len(PROMPT):
        engine.step()
    done = engine.progress()[request.id]
    assert done < len(PROMPT) - 1, "it was still in prefill"
    engine.cancel(request.id)
    return done


def cached(engine: Engine) -> int:
    """Tokens that the retry found; its answer is that of an undisturbed request."""
    outcome = run(engine, [AGAIN])[AGAIN.id]
    assert outcome == solo(tiny(), AGAIN)
    assert outcome.finish is not None
    return outcome.finish.usage.cached_tokens


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_retry_goes_on_where_the_memory_ends(share: float) -> None:
    engine = make_engine(tiny(), prefixes=in_memory(1 << 30))
    done = give_up_at(engine, FIRST, share)
    assert cached(engine) == done >= share * len(PROMPT)
    assert engine.stats().prompt_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_retry_goes_on_behind_the_last_whole_block_in_another_worker_too(house: CacheHouse, share: float) -> None:
    with engine_of(house) as engine:
        done = give_up_at(engine, FIRST, share)
        stored(engine, done // BLOCK)
    with engine_of(house, "worker:m:2") as another:
        assert cached(another) == done // BLOCK * BLOCK >= share * len(PROMPT) - BLOCK


def test_one_who_gives_up_again_and_again_gets_there(house: CacheHouse) -> None:
    """Each time a little further: no attempt computes what an earlier one has stored."""
    with engine_of(house) as engine:
        for attempt in range(1, 10):
            done = give_up_at(engine, replace(FIRST, id=RequestId(f"attempt {attempt}")), attempt / 10)
            stored(engine, done // BLOCK)
        assert engine.stats().prompt_tokens <= 0.9 * len(PROMPT) + 10 * BLOCK
        assert cached(engine) >= 0.9 * len(PROMPT) - BLOCK

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from pomona.cache.client import CacheClient
from pomona.cache.keys import Fingerprint
from pomona.runtime.mailbox import Peer
from pomona.runtime.wire import replace
from pomona.workers.engine import Engine
from pomona.workers.messages import RequestId, Usage
from pomona.workers.prefix import PrefixStore, layout_of
from pomona.workers.recent import RecentPrefixes
from tests.cache.house import DEADLINE_S, CacheHouse, until
from tests.workers.engines import ask, make_engine, run, solo, steps, tiny, with_a_hole, words
from tests.workers.faulty_models import PoisonedAt

BLOCK = 16
PROMPT = words(1, 20)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CacheHouse]:
    with CacheHouse(tmp_path / "kv") as house:
        yield house


@contextmanager
def engine_of(house: CacheHouse, name: str = "worker:m", model: Any = None, ram_bytes: int = 0) -> Iterator[Engine]:
    """An engine whose blocks go to the house, under a worker's name of its own."""
    caches = make_prompt_cache(tiny().model)
    tiny().model(mx.array([[1]]), cache=caches)
    layout = layout_of(caches)
    client = CacheClient(house.config.cache_endpoint, Peer(name, 1), timeout_s=DEADLINE_S)
    recent = RecentPrefixes(ram_bytes)
    store = PrefixStore(client, Fingerprint("w", "t", layout, BLOCK).root, layout, BLOCK, recent)
    store.on_roster(house.roster())
    try:
        yield make_engine(tiny(), model=model, prefixes=store)
    finally:
        store.close(DEADLINE_S)


def stored(engine: Engine, blocks: int) -> None:
    """Wait for so many; that there are no more is seen once the engine's store is closed."""
    until(lambda: engine.stats().stored_blocks + engine.stats().dropped_blocks >= blocks, f"{blocks} blocks")
    assert (engine.stats().stored_blocks, engine.stats().dropped_blocks) == (blocks, 0)


def test_prompt_and_answer_are_restored_for_the_next_turn(house: CacheHouse) -> None:
    with engine_of(house) as engine:
        first = run(engine, [ask("a", PROMPT, max_tokens=30, ignore_eos=True)])["a"]
        stored(engine, 3)  # 20 prompt and 29 answer tokens
        turn = ask("b", (*PROMPT, *first.tokens, *words(2, 5)), max_tokens=6)
        second = run(engine, [turn])["b"]
        assert second == solo(tiny(), turn)
        assert second.finish is not None
        assert second.finish.usage == Usage(55, len(second.tokens), 48)
        assert engine.stats().cached_tokens == 48
        assert engine.stats().prompt_tokens == 19 + 6


def test_identical_prompts_and_resumed_requests_count_no_more_cached_than_prompt_tokens(house: CacheHouse) -> None:
    with engine_of(house) as engine:
        whole = ask("a", PROMPT, max_tokens=30, ignore_eos=True)
        first = run(engine, [whole])["a"]
        stored(engine, 3)
        resumed = ask("b", PROMPT, max_tokens=30, ignore_eos=True, committed=first.tokens[:28])
        outcomes = run(engine, [resumed, ask("twin", PROMPT), ask("other twin", PROMPT)])
        assert outcomes["b"].tokens == first.tokens
        cached = {name: outcome.finish.usage.cached_tokens for name, outcome in outcomes.items() if outcome.finish}
        assert cached == {"b": 20, "twin": 16, "other twin": 19}


def test_a_prompt_that_is_only_read_is_kept(house: CacheHouse) -> None:
    with engine_of(house) as engine:
        outcome = run(engine, [ask("a", PROMPT, max_tokens=0)])["a"]
        assert outcome.tokens == []
        stored(engine, 1)
        finish = run(engine, [ask("b", PROMPT, max_tokens=1)])["b"].finish
        assert finish is not None
        assert finish.usage.cached_tokens == BLOCK


def test_a_retry_of_a_cancelled_prefill_goes_on_from_there(house: CacheHouse) -> None:
    again = ask("b", words(3, 200), max_tokens=4)
    with engine_of(house) as engine:
        engine.assign(replace(again, id=RequestId("a")))
        while engine.progress().get(RequestId("a"), 0) < 64:
            engine.step()
        engine.cancel(RequestId("a"))
        stored(engine, 4)
        outcome = run(engine, [again])["b"]
        assert outcome == solo(tiny(), again)
        assert outcome.finish is not None
        assert outcome.finish.usage.cached_tokens == 64


def test_what_a_cancelled_prefill_had_computed_is_kept(house: CacheHouse) -> None:
    with engine_of(house) as engine:
        engine.assign(ask("a", words(3, 200)))
        while engine.progress().get(RequestId("a"), 0) < 64:
            engine.step()
        engine.cancel(RequestId("a"))
    stored(engine, 4)


@pytest.mark.parametrize("end", ["cancel", "stop", "length"])
def test_what_an_ended_row_holds_is_kept(house: CacheHouse, end: str) -> None:
    with engine_of(house) as engine:
        free = ask("a", PROMPT, max_tokens=40, ignore_eos=True)
        tokens = solo(tiny(), free).tokens
        fourteenth = tokens[13]
        if end == "stop" and fourteenth in tokens[:13]:
            pytest.fail("choose another prompt: the stop token comes too early")
        engine.assign(
            ask(
                "a",
                PROMPT,
                max_tokens=14 if end == "length" else 40,
                ignore_eos=True,
                stop_token_ids=(fourteenth,) if end == "stop" else (),
            )
        )
        count = 0
        for events in steps(engine):
            count += sum(len(event.tokens) for event in events)
            if count == 14 and end == "cancel":
                engine.cancel(RequestId("a"))
    stored(engine, 2)


@pytest.mark.parametrize("max_tokens", [14, 40])
def test_blocks_of_a_row_whose_logits_are_not_finite_are_not_stored(house: CacheHouse, max_tokens: int) -> None:
    with engine_of(house, model=PoisonedAt(tiny().model, 32)) as engine:
        outcome = run(engine, [ask("a", PROMPT, max_tokens=max_tokens, ignore_eos=True)])["a"]
        assert len(outcome.tokens) == 13
        assert outcome.finish is not None
        assert outcome.finish.reason == "error"
    stored(engine, 1)  # of the prompt, whose own logits were finite


def test_a_cancelled_row_whose_next_logits_are_not_finite_is_not_stored(house: CacheHouse) -> None:
    with engine_of(house, model=PoisonedAt(tiny().model, 32)) as engine:
        engine.assign(ask("a", PROMPT, max_tokens=40, ignore_eos=True))
        count = 0
        for events in steps(engine):
            count += sum(len(event.tokens) for event in events)
            if count == 13:
                engine.cancel(RequestId("a"))
    stored(engine, 1)


LONG = words(9, 100)
HOLE = next(token for token in range(3, 320) if token not in LONG)
"""A token that is not in it."""


@pytest.mark.parametrize("ram_bytes", [0, 1 << 30])
@pytest.mark.parametrize("max_tokens", [1, 2, 8])
def test_nothing_is_kept_of_a_prompt_whose_first_logits_are_not_finite(
    house: CacheHouse, ram_bytes: int, max_tokens: int
) -> None:
    """It is computed in one chunk."""
    short = PROMPT[: BLOCK + 1]
    model = PoisonedAt(tiny().model, BLOCK)
    with engine_of(house, model=model, ram_bytes=ram_bytes) as engine:
        twins = [ask(name, short, max_tokens=max_tokens) for name in "ab"]
        outcomes = run(engine, [*twins, ask("fine", words(5, 6))])
        reasons = {name: outcome.finish and outcome.finish.reason for name, outcome in outcomes.items()}
        assert reasons == {"a": "error", "b": "error", "fine": "length"}, outcomes
        model.place = -1
        again = run(engine, [ask("again", short)])["again"]
        assert again == solo(tiny(), ask("again", short))
        assert again.finish is not None
        assert again.finish.usage.cached_tokens == 0


@pytest.mark.parametrize("end", ["error", "read", "cancelled", "cancelled before it draws"])
@pytest.mark.parametrize("ram_bytes", [0, 1 << 30])
def test_of_a_prompt_in_which_a_layer_gives_no_number_what_came_before_is_kept(
    house: CacheHouse, end: str, ram_bytes: int
) -> None:
    """One chunk is 16 tokens."""
    loaded = with_a_hole(HOLE)
    prompt = (*LONG[:40], HOLE, *LONG[40:])
    with engine_of(house, model=loaded.model, ram_bytes=ram_bytes) as engine:
        engine.assign(ask("a", prompt, max_tokens=0 if end == "read" else 8))
        reason = None
        for events in steps(engine):
            reason = next((event.finish.reason for event in events if event.finish is not None), reason)
            far = engine.progress().get(RequestId("a"), 0) >= 80
            if end.startswith("cancelled") and (far if end == "cancelled" else engine.stats().running):
                engine.cancel(RequestId("a"))
        assert reason == {"error": "error", "read": "length"}.get(end)
        stored(engine, 2)
        again = run(engine, [ask("b", LONG)])["b"]
        assert again == solo(tiny(), ask("b", LONG))
        assert again.finish is not None
        assert again.finish.usage.cached_tokens == 2 * BLOCK


def test_a_prompt_whose_row_ends_before_it_draws_is_kept(house: CacheHouse) -> None:
    """Its only block is of its last chunk."""
    with engine_of(house) as engine:
        for blocks, end in ((1, lambda: engine.cancel(RequestId("a"))), (2, engine.clear)):
            engine.assign(ask("a", words(7 + blocks, BLOCK + 1)))
            while not engine.stats().running:
                engine.step()
            end()
            stored(engine, blocks)


@pytest.mark.parametrize("ram_bytes", [0, 1 << 30])
def test_nothing_is_kept_of_a_prompt_whose_row_is_cancelled_on_first_logits_that_are_not_finite(
    house: CacheHouse, ram_bytes: int
) -> None:
    with engine_of(house, model=PoisonedAt(tiny().model, BLOCK), ram_bytes=ram_bytes) as engine:
        engine.assign(ask("a", PROMPT[: BLOCK + 1]))
        while not engine.stats().running:
            engine.step()
        engine.step()  # it has drawn, and nobody has read what
        engine.cancel(RequestId("a"))
        assert engine.stats().ram_bytes == 0
    stored(engine, 0)

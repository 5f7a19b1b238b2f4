"""Conversations with models of every family of caches: what a turn computes, and that nobody sees the difference."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pomona.runtime.wire import replace
from pomona.workers.engine import Engine
from pomona.workers.messages import Request, RequestId
from pomona.workers.prefix import PrefixStore
from tests.cache.house import DEADLINE_S, CacheHouse, until
from tests.workers.engines import GREEDY, Outcome, any_request, ask, make_engine, run, tiny, words
from tests.workers.families import SETTINGS, STATEFUL, model_of
from tests.workers.faulty_models import Raising
from tests.workers.test_families import BLOCK, open_store

PLENTY = 1 << 30


def engine_of(family: str, prefixes: PrefixStore) -> Engine:
    return make_engine(tiny(), model=model_of(family), prefixes=prefixes, max_running=4)


def alone(family: str, request: Request) -> Outcome:
    return run(engine_of(family, open_store(family)), [request])[request.id]


def cached(outcome: Outcome) -> int:
    assert outcome.finish is not None
    return outcome.finish.usage.cached_tokens


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CacheHouse]:
    with CacheHouse(tmp_path / "kv") as house:
        yield house


@pytest.mark.parametrize("family", SETTINGS)
def test_a_turn_computes_what_is_new(family: str) -> None:
    """The last token of an answer was drawn and went through no forward; the last of a prompt is decode's."""
    engine = engine_of(family, open_store(family, ram_bytes=PLENTY))
    history, new = words(1, 40), 40
    for turn in range(20):
        before = engine.stats().prompt_tokens
        request = ask(f"t{turn}", history, max_tokens=2 + turn % 4, ignore_eos=True)
        outcome = run(engine, [request])[request.id]
        assert engine.stats().prompt_tokens - before == new - (turn == 0)
        assert cached(outcome) == (len(history) - new - 1 if turn else 0)
        if turn in (0, 19):
            assert outcome == alone(family, request)
        history, new = (*history, *outcome.tokens, *words(100 + turn, 5)), 5


@pytest.mark.parametrize("family", STATEFUL)
def test_after_a_restart_a_turn_computes_its_new_tokens_and_less_than_a_block(family: str, house: CacheHouse) -> None:
    history: tuple[int, ...] = words(1, 40)
    computed = 0
    for turn in range(3):
        store = open_store(family, house, name=f"worker:{turn}")
        engine = engine_of(family, store)
        request = ask(f"t{turn}", history, max_tokens=6, ignore_eos=True)
        outcome = run(engine, [request])[request.id]
        assert outcome == alone(family, request)
        assert engine.stats().prompt_tokens < len(history) - computed + BLOCK
        computed = len(history) - 1
        store.close(DEADLINE_S)
        history = (*history, *outcome.tokens, *words(100 + turn, 20))


@pytest.mark.parametrize("family", STATEFUL)
@pytest.mark.parametrize("ram_bytes", [PLENTY, 200_000])
def test_requests_with_common_beginnings_get_what_they_get_alone(family: str, ram_bytes: int) -> None:
    """Many rows go on from one entry, each in its own direction; little memory forgets entries all the time."""
    source = random.Random(1)
    common = words(1, 50)
    requests = [
        replace(
            any_request(seed, longest_answer=9),
            prompt=(*common[: source.randint(0, 50)], *words(seed, source.randint(1, 10))),
            sampling=GREEDY,
        )
        for seed in range(4)
    ]
    engine = engine_of(family, open_store(family, ram_bytes=ram_bytes))
    for _ in range(2):
        together = run(engine, requests, every=2)
        for request in requests:
            assert together[request.id] == alone(family, request)


@pytest.mark.parametrize("family", STATEFUL)
def test_conversations_side_by_side_go_on_from_their_rows(family: str) -> None:
    """What a row leaves behind, with neighbours longer and shorter, is as good as what it would have alone."""
    engine = engine_of(family, open_store(family, ram_bytes=PLENTY))
    histories = {f"c{number}": words(number, length) for number, length in enumerate((5, 23, 44, 12))}
    for turn in range(3):
        requests = [
            ask(name, history, max_tokens=6 + 5 * number, ignore_eos=True)
            for number, (name, history) in enumerate(histories.items())
        ]
        together = run(engine, requests, every=3)
        for number, request in enumerate(requests):
            outcome = together[request.id]
            assert cached(outcome) == (len(request.prompt) - 4 if turn else 0)
            assert outcome == alone(family, request)
            histories[request.id] = (*request.prompt, *outcome.tokens, *words(50 * turn + number, 3))


@pytest.mark.parametrize("family", ["wide window", "hybrid"])
def test_a_fork_shares_its_blocks(family: str, house: CacheHouse) -> None:
    store = open_store(family, house)
    engine = engine_of(family, store)
    common = words(1, 3 * BLOCK)
    for name in "ab":
        outcome = run(engine, [ask(name, (*common, *words(ord(name), 2 * BLOCK)), max_tokens=2)])[name]
        assert cached(outcome) == (3 * BLOCK if name == "b" else 0)
        until(lambda name=name: store.stored_blocks == (4 if name == "a" else 5), "the blocks")
    store.close(DEADLINE_S)
    assert store.stored_blocks == 4 + 1  # the prompts' last tokens are decode's


@pytest.mark.parametrize("family", ["plain", "quantized", *STATEFUL])
@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_retry_of_a_cancelled_prefill_goes_on_from_there(family: str, tier: str, house: CacheHouse) -> None:
    store = open_store(family, house) if tier == "disk" else open_store(family, ram_bytes=PLENTY)
    engine = engine_of(family, store)
    again = ask("b", words(3, 120), max_tokens=4)
    engine.assign(replace(again, id=RequestId("a")))
    while engine.progress().get(RequestId("a"), 0) < 64:
        engine.step()
    engine.cancel(RequestId("a"))
    if tier == "disk":
        until(lambda: store.stored_blocks == 4, "the blocks")
    outcome = run(engine, [again])["b"]
    assert (outcome, cached(outcome)) == (alone(family, again), 64)
    store.close(DEADLINE_S)


@pytest.mark.parametrize("family", ["plain", "wide window", "recurrent"])
def test_a_retry_of_a_failed_prefill_goes_on_from_its_last_block(family: str, house: CacheHouse) -> None:
    store = open_store(family, house)
    prompt = words(3, 120)
    model = Raising(model_of(family), prompt[70])
    assert model.token not in prompt[:64]
    engine = make_engine(tiny(), model=model, prefixes=store)
    outcome = run(engine, [ask("a", prompt, max_tokens=4)])["a"]
    assert outcome.finish is not None
    assert outcome.finish.reason == "error"
    until(lambda: store.stored_blocks == 4, "the blocks")
    model.token = -1
    again = ask("b", prompt, max_tokens=4)
    outcome = run(engine, [again])["b"]
    assert (outcome, cached(outcome)) == (alone(family, again), 64)
    store.close(DEADLINE_S)

import random

import pytest

from pomona.runtime.wire import replace
from pomona.workers.messages import RequestId
from tests.support.tiny_model import FAMILIES
from tests.workers.engines import Outcome, any_request, ask, in_memory, make_engine, run, solo, steps, tiny, words
from tests.workers.faulty_models import PoisonedAt

PLENTY = 1 << 30


def cached(outcome: Outcome) -> int:
    assert outcome.finish is not None
    return outcome.finish.usage.cached_tokens


def test_the_next_turn_restores_all_that_was_computed() -> None:
    engine = make_engine(tiny(), prefixes=in_memory(PLENTY))
    first = run(engine, [ask("a", words(1, 20), max_tokens=30, ignore_eos=True)])["a"]
    turn = ask("b", (*words(1, 20), *first.tokens, *words(2, 5)), max_tokens=6)
    second = run(engine, [turn])["b"]
    assert second == solo(tiny(), turn)
    assert cached(second) == 49  # the last token of the answer was drawn, and went through no forward
    assert engine.stats().cached_tokens == 49
    assert engine.stats().prompt_tokens == 19 + 5


def test_the_very_same_prompt_is_not_computed_again() -> None:
    engine = make_engine(tiny(), prefixes=in_memory(PLENTY))
    request = ask("a", words(1, 20))
    first = run(engine, [request])["a"]
    second = run(engine, [replace(request, id=RequestId("again"))])["again"]
    assert (second, cached(second), engine.stats().prompt_tokens) == (first, 19, 19)


def test_prefixes_are_shared_under_one_salt_only() -> None:
    engine = make_engine(tiny(), prefixes=in_memory(PLENTY))
    run(engine, [ask("a", words(1, 20), salt="x")])
    assert cached(run(engine, [ask("b", words(1, 20), salt="y")])["b"]) == 0
    assert cached(run(engine, [ask("c", words(1, 20), salt="x")])["c"]) == 19


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ram_bytes", [PLENTY, 300_000])
def test_requests_with_common_beginnings_get_what_they_get_alone(family: str, ram_bytes: int) -> None:
    """Many rows go on from one entry, each in its own direction; little memory forgets entries all the time."""
    source = random.Random(1)
    common = words(1, 40)
    requests = [
        replace(any_request(seed), prompt=(*common[: source.randint(0, 40)], *words(seed, source.randint(1, 10))))
        for seed in range(10)
    ]
    together = run(make_engine(tiny(family), prefixes=in_memory(ram_bytes), max_running=4), requests, every=2)
    for request in requests:
        assert together[request.id] == solo(tiny(family), request)


def test_a_request_resumes_on_what_it_had_computed() -> None:
    engine = make_engine(tiny(), prefixes=in_memory(PLENTY))
    whole = ask("a", words(1, 20), max_tokens=30, ignore_eos=True)
    alone = solo(tiny(), whole)
    engine.assign(whole)
    outcome = Outcome()
    for events in steps(engine):
        for event in events:
            outcome.take(event)
        if len(outcome.tokens) == 11:
            break
    assert engine.cancel(RequestId("a")) is not None
    computed = engine.stats().prompt_tokens
    resumed = run(engine, [replace(whole, committed=tuple(outcome.tokens))])["a"]
    assert resumed.tokens == alone.tokens
    assert engine.stats().prompt_tokens == computed
    assert cached(resumed) == 20


def test_what_a_row_with_bad_logits_held_is_not_restored() -> None:
    for max_tokens in (14, 40):
        engine = make_engine(tiny(), prefixes=in_memory(PLENTY), model=PoisonedAt(tiny().model, 32))
        request = ask("a", words(1, 20), max_tokens=max_tokens, ignore_eos=True)
        outcome = run(engine, [request])["a"]
        assert (len(outcome.tokens), outcome.finish and outcome.finish.reason) == (13, "error")
        probe = ask("b", (*words(1, 20), *outcome.tokens), max_tokens=0)
        assert cached(run(engine, [probe])["b"]) == 19  # the prompt's own

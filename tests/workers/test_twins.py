"""Two identical long prompts at the same instant: computed once, and both answered, whoever of them goes away."""

import pytest

from pomona.workers.engine import Engine
from pomona.workers.messages import RequestId
from tests.workers.engines import Outcome, ask, make_engine, run, solo, tiny, words

PROMPT = words(1, 120)
CHUNKS = 8
TWINS = [
    ask(f"t{seed}", PROMPT, sampling={"seed": seed, "temperature": 1.0}, max_tokens=6, ignore_eos=True)
    for seed in (1, 2)
]


def started() -> Engine:
    engine = make_engine(tiny())
    for twin in TWINS:
        engine.assign(twin)
    return engine


def test_twins_are_prefilled_once_and_both_are_answered() -> None:
    engine = make_engine(tiny())
    outcomes = run(engine, TWINS)
    assert engine.stats().prompt_tokens == len(PROMPT) - 1
    assert outcomes == {twin.id: solo(tiny(), twin) for twin in TWINS}
    assert outcomes["t1"].tokens != outcomes["t2"].tokens
    usages = [outcome.finish.usage for outcome in outcomes.values() if outcome.finish is not None]
    assert [usage.cached_tokens for usage in usages] == [0, len(PROMPT) - 1]


@pytest.mark.parametrize(("gone", "stays"), [TWINS, TWINS[::-1]], ids=["the first", "the second"])
@pytest.mark.parametrize("after", range(CHUNKS + 3))
def test_a_twin_that_is_cancelled_at_any_step_takes_nothing_from_the_other(
    gone: object, stays: object, after: int
) -> None:
    engine = started()
    outcomes = {twin.id: Outcome() for twin in TWINS}
    for step in range(1000):
        if step == after:
            assert engine.cancel(gone.id) is not None  # type: ignore[attr-defined]
        if not engine.busy:
            break
        for event in engine.step():
            assert step < after or event.id != gone.id  # type: ignore[attr-defined]
            outcomes[event.id].take(event)
    assert outcomes[stays.id] == solo(tiny(), stays)  # type: ignore[attr-defined, arg-type]
    assert engine.stats().prompt_tokens == len(PROMPT) - 1
    assert engine.stats().kv_bytes == 0


def test_a_prefill_that_both_twins_leave_ends_there() -> None:
    engine = started()
    engine.step()
    for twin in TWINS:
        assert engine.cancel(RequestId(twin.id)) is not None
    assert not engine.busy
    assert engine.stats().prompt_tokens < len(PROMPT) - 1

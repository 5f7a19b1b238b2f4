"""Grammars are compiled beside the engine: their rows wait, the others go on, and what fails fails alone."""

import json
import threading

import pytest

from pomona.runtime.wire import replace
from pomona.workers.constraint.compiler import Compiler
from pomona.workers.constraint.tokens import Tokens
from pomona.workers.engine import Engine, EngineLimits
from pomona.workers.messages import Constraint, Request
from tests.workers.constraint.engines import constrained, constrained_engine
from tests.workers.constraint.lexicons import tokens
from tests.workers.engines import Outcome, any_request, in_memory, run, solo, tiny

LIMIT_S = 20.0


class Gate:
    """Tokens whose grammars are compiled only once the gate is open."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def tokens(self) -> Tokens:
        own = tokens()
        gate = self

        class Gated(Tokens):
            def __init__(self) -> None:
                self.__dict__.update(own.__dict__)

            def __getattribute__(self, name: str) -> object:
                if name == "lexicon":
                    gate.open.wait(LIMIT_S)
                return super().__getattribute__(name)

        return Gated()


@pytest.fixture
def gate() -> Gate:
    return Gate()


def engine_with(compiler: Compiler | None) -> Engine:
    loaded = tiny()
    limits = EngineLimits(8, 64, 0.0)
    return Engine(loaded.model, loaded.vocabulary, loaded.eos, limits, in_memory(0), (), compiler)


def request(name: str = "bound") -> Request:
    return constrained(name, Constraint("choice", json.dumps(["yes", "no"])))


def test_others_run_while_a_grammar_is_awaited(gate: Gate) -> None:
    compiler = Compiler(gate.tokens())
    engine = engine_with(compiler)
    free = any_request(1)
    outcomes = {"bound": Outcome(), str(free.id): Outcome()}
    engine.assign(request())
    engine.assign(free)
    while outcomes[str(free.id)].finish is None:
        for event in engine.step():
            outcomes[event.id].take(event)
    assert outcomes[str(free.id)] == solo(tiny(), free)
    assert outcomes["bound"].tokens == []
    assert engine.busy
    gate.open.set()
    while engine.busy:
        for event in engine.step():
            outcomes[event.id].take(event)
    assert outcomes["bound"].text in ("yes", "no")
    compiler.close(LIMIT_S)


def test_a_row_that_is_cancelled_or_cleared_while_it_waits_is_compiled_no_more(gate: Gate) -> None:
    compiler = Compiler(gate.tokens())
    engine = engine_with(compiler)
    for name in ("first", "second", "third"):
        engine.assign(request(name))
    engine.step()
    assert engine.cancel(request("second").id) is not None
    engine.clear()
    assert not engine.busy
    engine.assign(request("fourth"))
    gate.open.set()
    outcome = Outcome()
    while engine.busy:
        for event in engine.step():
            assert event.id == "fourth"
            outcome.take(event)
    assert outcome.text in ("yes", "no")
    compiler.close(LIMIT_S)


def test_what_takes_too_long_fails_and_the_next_one_is_taken(gate: Gate) -> None:
    compiler = Compiler(gate.tokens(), limit_s=0.05)
    engine = engine_with(compiler)
    (outcome,) = run(engine, [request()]).values()
    assert outcome.finish is not None
    assert outcome.finish.reason == "error"
    assert "not compiled within 0.05 s" in str(outcome.finish)
    gate.open.set()
    (outcome,) = run(engine, [request("next")]).values()
    assert outcome.text in ("yes", "no")
    compiler.close(LIMIT_S)


def test_a_grammar_that_fails_ends_its_own_request_alone() -> None:
    wrong = [
        constrained("regex", Constraint("regex", "(a")),
        constrained("schema", Constraint("json_schema", "[]")),
        constrained("lark", Constraint("lark", "start: <|im_end|>")),
    ]
    free = any_request(2)
    with constrained_engine() as engine:
        outcomes = run(engine, [*wrong, free, request()])
    for each in wrong:
        finish = outcomes[str(each.id)].finish
        assert finish is not None
        assert finish.reason == "error"
        assert "constraint" in str(finish)
        assert outcomes[str(each.id)].tokens == []
    assert outcomes[str(free.id)] == solo(tiny(), free)
    assert outcomes["bound"].text in ("yes", "no")


def test_a_grammar_that_leads_nowhere_half_way_ends_its_request_there() -> None:
    """An end-of-sequence token is none of a text, so behind the first letter nothing can follow."""
    stuck = constrained("stuck", Constraint("lark", 'start: "a" <|im_end|> "b"'))
    free = any_request(3)
    with constrained_engine() as engine:
        outcomes = run(engine, [stuck, free])
    finish = outcomes["stuck"].finish
    assert finish is not None
    assert outcomes["stuck"].text in ("", "a")
    assert finish.reason == "error"
    assert outcomes[str(free.id)] == solo(tiny(), free)


def test_a_worker_without_grammars_follows_no_constraint_and_says_so() -> None:
    (outcome,) = run(engine_with(None), [request()]).values()
    assert outcome.finish is not None
    assert outcome.finish.reason == "error"
    assert "constraint cannot be followed" in str(outcome.finish)


def test_an_answer_that_was_complete_when_it_was_broken_off_ends_at_once() -> None:
    (whole,) = (run_alone(request()),)
    with constrained_engine() as engine:
        (again,) = run(engine, [replace(request(), committed=tuple(whole.tokens))]).values()
    assert again.finish is not None
    assert again.finish.reason == "stop"
    assert again.tokens == whole.tokens


def run_alone(one: Request) -> Outcome:
    with constrained_engine() as engine:
        return run(engine, [one])[str(one.id)]

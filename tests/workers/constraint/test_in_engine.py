"""Random models under hard sampling: what ends is valid, what is cut off is the beginning of something valid."""

import json
import random

import jsonschema
import pytest

from pomona.runtime.wire import replace
from pomona.workers.messages import Constraint, Limits, Request, Speculation
from pomona.workers.speculation.ngram import NgramProposer
from tests.workers.constraint.engines import constrained, constrained_engine
from tests.workers.constraint.lexicons import matcher, read
from tests.workers.constraint.schemas import drawn_schema
from tests.workers.engines import Outcome, any_request, run, solo, tiny
from tests.workers.families import SETTINGS, model_of


def schema_request(number: int, **more: object) -> tuple[dict[str, object], Request]:
    draw = random.Random(number)
    schema = drawn_schema(draw)
    request = constrained(
        f"schema {number}",
        Constraint("json_schema", json.dumps(schema)),
        temperature=draw.choice((1.0, 2.0, 5.0)),
        max_tokens=draw.choice((12, 40, 120)),
        seed=number,
    )
    return schema, replace(request, **more)


def check(schema: dict[str, object], request: Request, outcome: Outcome) -> bool:
    """True if the answer ended by itself."""
    assert outcome.finish is not None
    assert request.constraint is not None
    if outcome.finish.reason == "stop":
        jsonschema.validate(json.loads(outcome.text), schema, cls=jsonschema.Draft202012Validator)
        return True
    assert outcome.finish.reason == "length", outcome.finish
    assert read(matcher(request.constraint), outcome.text.removesuffix("\N{REPLACEMENT CHARACTER}"))
    return False


def answers(numbers: range, *, speculation: Speculation | None = None) -> int:
    """Runs all, eight at a time, and checks each; how many ended by themselves."""
    asked = [schema_request(number) for number in numbers]
    if speculation is not None:
        asked = [(schema, replace(request, speculation=speculation)) for schema, request in asked]
    with constrained_engine(proposers=[NgramProposer()]) as engine:
        outcomes = run(engine, [request for _, request in asked])
    return sum(check(schema, request, outcomes[str(request.id)]) for schema, request in asked)


def test_every_answer_that_ends_is_valid_and_every_other_the_beginning_of_a_valid_one() -> None:
    assert answers(range(120)) > 60


def test_so_it_is_with_drafts() -> None:
    assert answers(range(200, 260), speculation=Speculation(method="ngram", depth=4)) > 30


@pytest.mark.campaign
def test_so_it_is_for_thousands_of_schemas() -> None:
    for begin in range(1000, 3200, 200):
        assert answers(range(begin, begin + 200)) > 80


def test_drafts_change_no_answer() -> None:
    plain = [schema_request(number)[1] for number in range(300, 316)]
    guessed = [replace(request, speculation=Speculation(method="ngram", depth=3)) for request in plain]
    with constrained_engine() as engine:
        expected = run(engine, plain)
    with constrained_engine(proposers=[NgramProposer()]) as engine:
        outcomes = run(engine, guessed)
        assert engine.stats().saved_forwards > 0
    assert {name: (each.text, each.tokens) for name, each in outcomes.items()} == {
        name: (each.text, each.tokens) for name, each in expected.items()
    }


@pytest.mark.parametrize("family", SETTINGS)
def test_free_rows_beside_constrained_ones_answer_as_they_do_alone(family: str) -> None:
    model = model_of(family)
    free = [any_request(number) for number in range(4)]
    bound = [schema_request(number)[1] for number in range(400, 404)]
    expected = {str(request.id): solo(tiny(), request, model=model) for request in free}
    mixed = [request for pair in zip(bound, free, strict=True) for request in pair]
    with constrained_engine(model) as engine:
        outcomes = run(engine, mixed, every=1)
    assert {name: outcomes[name] for name in expected} == expected
    for request in bound:
        assert outcomes[str(request.id)].finish is not None


def test_an_answer_that_cannot_go_on_ends_without_an_end_token() -> None:
    request = constrained("choice", Constraint("choice", json.dumps(["abc"])), temperature=5.0)
    with constrained_engine() as engine:
        (outcome,) = run(engine, [request]).values()
    assert (outcome.text, outcome.finish and outcome.finish.reason) == ("abc", "stop")
    assert not set(outcome.tokens) & tiny().eos


def test_an_end_token_comes_only_where_the_answer_is_complete() -> None:
    """The longer answers are complete at several lengths; `ignore_eos` is about free answers."""
    for ignores in (False, True):
        texts = set()
        for seed in range(12):
            request = constrained("regex", Constraint("regex", "(ab|cd){1,6}"), temperature=5.0, seed=seed)
            request = replace(request, limits=Limits(max_tokens=60, ignore_eos=ignores))
            with constrained_engine() as engine:
                (outcome,) = run(engine, [request]).values()
            assert outcome.finish is not None
            assert outcome.finish.reason == "stop"
            assert len(outcome.text) % 2 == 0
            texts.add(outcome.text)
        assert len({len(text) for text in texts}) > 2


def test_fewest_tokens_hold_the_end_back_only_where_there_is_a_choice() -> None:
    choice = constrained("choice", Constraint("choice", json.dumps(["ab"])), temperature=5.0)
    longer = constrained("regex", Constraint("regex", "[ab]{1,40}"), temperature=5.0)
    requests = [replace(each, limits=Limits(max_tokens=60, min_tokens=20)) for each in (choice, longer)]
    with constrained_engine() as engine:
        outcomes = run(engine, requests)
    assert outcomes["choice"].text == "ab"
    assert len(outcomes["regex"].tokens) >= 20


def test_an_answer_goes_on_in_its_grammar_where_it_was_broken_off() -> None:
    for number in range(500, 512):
        _, request = schema_request(number)
        with constrained_engine() as engine:
            whole = run(engine, [request])[str(request.id)]
        for cut in {1, len(whole.tokens) // 2, len(whole.tokens) - 1} - {0}:
            again = replace(request, committed=tuple(whole.tokens[:cut]))
            with constrained_engine() as engine:
                resumed = run(engine, [again])[str(request.id)]
            assert resumed.tokens == whole.tokens
            assert resumed.finish is not None
            assert whole.finish is not None
            assert resumed.finish.reason == whole.finish.reason


def test_stop_strings_and_penalties_and_bias_work_within_a_grammar() -> None:
    number = constrained("number", Constraint("regex", "[0-9]{30}"), temperature=1.0)
    banned = {
        token: -100.0 for token in range(tiny().vocabulary.__len__()) if b"7" in tiny().vocabulary.bytes_of(token)
    }
    biased = replace(number, sampling=replace(number.sampling, logit_bias=banned, frequency_penalty=1.0))
    with constrained_engine() as engine:
        (outcome,) = run(engine, [biased]).values()
    assert len(outcome.text) == 30
    assert "7" not in outcome.text
    stopped = replace(number, limits=Limits(max_tokens=60, stop=("3",)))
    with constrained_engine() as engine:
        (outcome,) = run(engine, [stopped]).values()
    assert "3" not in outcome.text

"""Whatever is drafted, the answers are those of plain decoding."""

import random
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from pomona.config import Method
from pomona.runtime.wire import replace
from pomona.workers.engine import Engine, EngineLimits
from pomona.workers.messages import Request, RequestId, Speculation
from pomona.workers.speculation.ngram import NgramProposer
from pomona.workers.speculation.proposal import Proposer
from tests.workers.engines import Outcome, any_request, ask, in_memory, run, tiny, words
from tests.workers.families import SETTINGS, model_of
from tests.workers.faulty_models import Poisoned, Watched
from tests.workers.speculation.scripted import Scripted

UNLUCKY = 77


def engine_of(model: Any, proposers: Sequence[Proposer] = (), max_running: int = 8, ram_bytes: int = 0) -> Engine:
    loaded = tiny()
    limits = EngineLimits(max_running, 64, 0.0)
    return Engine(model, loaded.vocabulary, loaded.eos, limits, in_memory(ram_bytes), proposers)


def drafting(request: Request, depth: int = 3, method: Method = "draft") -> Request:
    return replace(request, speculation=Speculation(method=method, depth=depth))


def alone(model: Any, requests: Sequence[Request]) -> dict[str, Outcome]:
    """Each by itself, without any drafts."""
    outcomes = {}
    for request in requests:
        plain = replace(request, speculation=Speculation(method="off"))
        outcomes[str(request.id)] = run(engine_of(model), [plain])[request.id]
    return outcomes


def same(outcomes: dict[str, Outcome], others: dict[str, Outcome]) -> bool:
    """Equal to a client, save for the usage of drafts."""

    def seen(outcome: Outcome) -> object:
        finish = outcome.finish and replace(outcome.finish, usage=replace(outcome.finish.usage, cached_tokens=0))
        plain = finish and replace(finish, usage=replace(finish.usage, accepted_tokens=0, rejected_tokens=0))
        listed = [(entry.chosen.token, *(top.token for top in entry.top)) for entry in outcome.logprobs]
        return outcome.tokens, outcome.text, listed, plain

    return {name: seen(each) for name, each in outcomes.items()} == {name: seen(each) for name, each in others.items()}


@pytest.mark.parametrize("family", SETTINGS)
def test_rows_that_draft_answer_as_they_do_alone_without(family: str) -> None:
    model = model_of(family)
    requests = [drafting(any_request(seed), depth=1 + seed % 4) for seed in range(8)]
    expected = alone(model, requests)
    scripted = Scripted({name: outcome.tokens for name, outcome in expected.items()})
    engine = engine_of(model, [scripted])
    assert engine.methods == ("draft",)
    outcomes = run(engine, requests, every=2)
    assert same(outcomes, expected)
    stats = engine.stats()
    assert stats.verify_steps > 0
    assert stats.saved_forwards == sum(stats.speculation["draft"].accepted) > 0
    assert set(scripted.forgotten) >= {request.id for request in requests}


def test_rows_that_draft_share_a_batch_with_rows_that_do_not() -> None:
    model = model_of("plain")
    requests = [
        drafting(any_request(seed), depth=4) if seed % 2 else replace(any_request(seed), speculation=OFF)
        for seed in range(20, 32)
    ]
    expected = alone(model, requests)
    engine = engine_of(model, [Scripted({name: outcome.tokens for name, outcome in expected.items()})])
    outcomes = run(engine, requests, every=1)
    assert same(outcomes, expected)
    for index, request in enumerate(requests):
        finish = outcomes[request.id].finish
        assert finish is not None
        if index % 2 == 0:  # seeds 20, 22, ...
            assert (finish.usage.accepted_tokens, finish.usage.rejected_tokens) == (0, 0)


OFF = Speculation(method="off")


def test_copies_of_the_prompt_are_drafted_and_verified() -> None:
    model = model_of("plain")
    request = drafting(ask("copy", words(1, 12) * 4, max_tokens=60, ignore_eos=True), method="ngram")
    expected = alone(model, [request])
    engine = engine_of(model, [NgramProposer()])
    assert same(run(engine, [request]), expected)
    assert engine.stats().speculation["ngram"].tested


def test_usage_counts_what_was_accepted_and_what_was_refused() -> None:
    model = model_of("plain")
    request = drafting(ask("r", words(3, 9), max_tokens=41, ignore_eos=True), depth=4)
    expected = alone(model, [request])
    answers = {"r": expected["r"].tokens}
    right = run(engine_of(model, [Every(answers, wrong=0.0)]), [request])["r"].finish
    wrong = run(engine_of(model, [Every(answers, wrong=1.0, vocabulary=1)]), [request])["r"].finish
    assert right is not None
    assert wrong is not None
    # 8 rounds of 5, and a last token that needs no drafts.
    assert (right.usage.accepted_tokens, right.usage.rejected_tokens) == (32, 0)
    accepted = sum(token == 0 for token in answers["r"])
    assert accepted <= wrong.usage.accepted_tokens + 2
    assert wrong.usage.rejected_tokens > 30 * 4


class Every(Scripted):
    """As many drafts as it is asked for."""

    def _drafts(self, ask: Any) -> tuple[int, ...]:
        known = list(self.answers[ask.row.request.id])[len(ask.row.committed) :][: ask.depth]
        return tuple(0 if self.wrong else token for token in known)


def test_whole_rounds_are_committed_in_one_step_each() -> None:
    model = model_of("plain")
    request = drafting(ask("r", words(3, 9), max_tokens=41, ignore_eos=True), depth=4)
    expected = alone(model, [request])
    watched = Watched(model)
    engine = engine_of(watched, [Every({"r": expected["r"].tokens}, wrong=0.0)])
    assert engine.methods
    watched.widths.clear()  # of what the first look computes
    outcomes = run(engine, [request])
    assert same(outcomes, expected)
    assert watched.widths.count(5) == 8
    assert watched.widths.count(1) == 1


def test_nothing_behind_a_stop_is_delivered_or_kept() -> None:
    model = model_of("plain")
    request = drafting(ask("r", words(5, 20), max_tokens=40, ignore_eos=True), depth=6)
    answer = alone(model, [request])["r"]
    for place in range(1, 20, 4):
        stopping = replace(request, limits=replace(request.limits, stop_token_ids=(answer.tokens[place],)))
        expected = alone(model, [stopping])
        engine = engine_of(model, [Every({"r": answer.tokens}, wrong=0.0)], ram_bytes=1 << 24)
        assert same(run(engine, [stopping]), expected)
        again = replace(request, id=RequestId("again"), prompt=(*request.prompt, *expected["r"].tokens, 9))
        plain = alone(model, [again])
        assert same(run(engine, [replace(again, speculation=OFF)]), plain)
        finish = run(engine, [replace(again, id=RequestId("third"), speculation=OFF)])["third"].finish
        assert finish is not None
        assert finish.usage.cached_tokens >= len(request.prompt)


def test_a_row_may_be_cancelled_while_its_drafts_are_verified() -> None:
    model = model_of("hybrid")
    requests = [drafting(ask(f"r{seed}", words(seed, 15), max_tokens=30, ignore_eos=True)) for seed in range(4)]
    expected = alone(model, requests)
    answers = {name: outcome.tokens for name, outcome in expected.items()}
    for moment in range(3, 14, 2):
        engine = engine_of(model, [Scripted(answers)])
        outcomes = {request.id: Outcome() for request in requests}
        for request in requests:
            engine.assign(request)
        step = 0
        while engine.busy:
            if step == moment:
                usage = engine.cancel(RequestId("r1"))
                assert usage is not None
                assert usage.completion_tokens == len(outcomes[RequestId("r1")].tokens)
            for event in engine.step():
                outcomes[event.id].take(event)
            step += 1
        for name in ("r0", "r2", "r3"):
            assert outcomes[RequestId(name)].tokens == answers[name]
        gone = outcomes[RequestId("r1")].tokens
        assert gone == answers["r1"][: len(gone)]


def test_clearing_in_the_midst_of_a_round_leaves_what_resuming_needs() -> None:
    model = model_of("hybrid")
    request = drafting(ask("r", words(8, 30), max_tokens=30, ignore_eos=True))
    expected = alone(model, [request])
    for moment in range(2, 12, 2):
        engine = engine_of(model, [Scripted({"r": expected["r"].tokens})], ram_bytes=1 << 24)
        outcome = Outcome()
        engine.assign(request)
        for _ in range(moment):
            for event in engine.step():
                outcome.take(event)
        engine.clear()
        assert not engine.busy
        resumed = run(engine, [replace(request, committed=tuple(outcome.tokens))])["r"]
        assert resumed.tokens == expected["r"].tokens


def test_logits_that_are_not_finite_end_their_row_alone_and_are_not_stored() -> None:
    model = model_of("plain")
    good = [
        drafting(
            ask(f"g{seed}", words(seed, 20), sampling={"logit_bias": {UNLUCKY: -99.0}}, max_tokens=25, ignore_eos=True)
        )
        for seed in range(7)
    ]
    bad = drafting(ask("bad", words(9, 20), sampling={"logit_bias": {UNLUCKY: 99.0}}, max_tokens=25, ignore_eos=True))
    expected = alone(model, good)
    answers = {name: outcome.tokens for name, outcome in expected.items()} | {"bad": [UNLUCKY] * 25}
    engine = engine_of(Poisoned(model, UNLUCKY), [Every(answers, wrong=0.0)], ram_bytes=1 << 24)
    outcomes = run(engine, [*good[:3], bad, *good[3:]])
    finish = outcomes.pop("bad").finish
    assert finish is not None
    assert finish.reason == "error"
    assert "not finite at output token 1: 320 NaN and 0 inf among 320 logits" in finish.message
    assert same(outcomes, expected)
    plain = run(engine, [replace(bad, id=RequestId("next"), sampling=good[0].sampling, speculation=OFF)])["next"]
    assert plain.finish is not None
    assert plain.finish.reason == "length"
    assert plain.finish.usage.cached_tokens <= 19  # the prompt's own, which was sound


@pytest.mark.campaign
@pytest.mark.parametrize("family", SETTINGS)
def test_many_mixed_batches_answer_as_they_do_alone(family: str) -> None:
    model = model_of(family)
    source = random.Random(family)
    for turn in range(12):
        requests = [
            drafting(any_request(100 * turn + seed), depth=source.randint(1, 7)) for seed in range(source.randint(1, 9))
        ]
        expected = alone(model, requests)
        scripted = Scripted(
            {name: outcome.tokens for name, outcome in expected.items()}, wrong=source.choice([0.0, 0.1, 0.5, 1.0])
        )
        assert same(run(engine_of(model, [scripted]), requests, every=source.randint(0, 3)), expected), turn


def test_the_time_of_others_is_no_time_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that gives its turn back reads what it launched only in its next one."""
    clock = count(0.0, 0.001)
    away = 0.0
    monkeypatch.setattr("pomona.workers.engine.now", lambda: next(clock) + away)
    request = drafting(any_request(3), depth=2)
    engine = engine_of(
        model_of("plain"), [Scripted({request.id: alone(model_of("plain"), [request])[request.id].tokens})]
    )
    engine.assign(request)
    while engine.busy:
        engine.step()
        engine.pause()
        away += 1000.0
    stats = engine.stats()
    assert stats.verify_steps > 0
    assert stats.verify_seconds < 1

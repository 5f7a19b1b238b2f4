from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from pomona.runtime.wire import replace
from pomona.workers.engine import SMALLEST_CHUNK, Engine
from pomona.workers.messages import Request, RequestId, TokenEvent, Usage, WorkerStats
from pomona.workers.sampling import reference
from pomona.workers.vocabulary import Vocabulary
from tests.support.tiny_model import FAMILIES
from tests.workers.engines import Outcome, any_request, ask, make_engine, run, solo, steps, tiny, words
from tests.workers.faulty_models import Poisoned, Raising, Watched
from tests.workers.lone_cache import LoneCaches

UNLUCKY = 7
"""The token at which faulty models go wrong; it is in no prompt that `words` makes for these tests."""


def prompt(seed: int, length: int) -> tuple[int, ...]:
    return tuple(token if token != UNLUCKY else token + 1 for token in words(seed, length))


NEVER_UNLUCKY = {"logit_bias": {UNLUCKY: -100.0}}


def held(engine: Engine) -> tuple[int, int, int, int]:
    stats = engine.stats()
    return stats.running, stats.prefilling, stats.waiting, stats.kv_bytes


# rows in company


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("every", [0, 3])
def test_requests_get_in_company_what_they_get_alone(family: str, every: int) -> None:
    requests = [any_request(seed) for seed in range(12)]
    engine = make_engine(tiny(family), max_running=6)
    together = run(engine, requests, every=every)
    for request in requests:
        assert together[request.id] == solo(tiny(family), request)
    assert held(engine) == (0, 0, 0, 0)


def test_the_size_of_prefill_chunks_changes_nothing() -> None:
    requests = [any_request(seed) for seed in range(30, 40)]
    for family in ("llama", "gemma3_text"):
        fine, coarse = (
            run(make_engine(tiny(family), prefill_chunk=chunk, stall_s=stall_s), requests)
            for chunk, stall_s in ((5, 0.0), (256, 60.0))
        )
        assert fine == coarse


# resume


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", [2, 3])
def test_a_request_resumed_anywhere_goes_on_as_if_undisturbed(family: str, seed: int) -> None:
    whole = any_request(seed)
    whole = replace(whole, limits=replace(whole.limits, max_tokens=20, min_tokens=12, stop=("e",)))
    undisturbed = solo(tiny(family), whole)
    assert len(undisturbed.tokens) >= 12
    cuts = range(len(undisturbed.tokens) + 1)
    resumed = run(
        make_engine(tiny(family), max_running=32),
        [
            replace(whole, id=RequestId(f"from {cut}"), committed=tuple(undisturbed.tokens[:cut]), cache_salt=str(cut))
            for cut in cuts
        ],
    )
    events = list(recorded(family, whole))
    for cut in cuts:
        rest = resumed[f"from {cut}"]
        assert rest.tokens == undisturbed.tokens
        assert rest.text == "".join(delta.text for event in events[cut:] for delta in event.deltas)
        assert rest.finish == undisturbed.finish


def recorded(family: str, request: Request) -> list[TokenEvent]:
    """The request's events, one a token."""
    engine = make_engine(tiny(family))
    engine.assign(request)
    return [event for events in steps(engine) for event in events]


def test_a_request_that_had_already_ended_is_told_its_end_at_once() -> None:
    loaded = tiny()
    whole = ask("r", prompt(1, 20), max_tokens=3)
    outcome = solo(loaded, whole)
    engine = make_engine(loaded)
    engine.assign(replace(whole, committed=tuple(outcome.tokens)))
    (event,) = engine.step()
    assert (event.position, event.tokens, event.deltas, event.finish) == (3, (), (), outcome.finish)
    assert not engine.busy
    assert engine.stats().prompt_tokens == 0


def test_a_resumed_prompt_is_counted_as_it_was() -> None:
    whole = ask("r", prompt(1, 20), max_tokens=6)
    outcome = solo(tiny(), whole)
    resumed = solo(tiny(), replace(whole, committed=tuple(outcome.tokens[:4])))
    assert resumed.finish is not None
    assert resumed.finish.usage == Usage(20, 6)


# cancel


def waiting(engine: Engine, name: str) -> bool:
    return bool(engine.stats().waiting)


def prefilling(engine: Engine, name: str) -> bool:
    return engine.progress().get(RequestId(name), 0) > 0


def decoding(engine: Engine, name: str) -> bool:
    return name not in engine.progress() and not engine.stats().waiting


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stage", [waiting, prefilling, decoding])
def test_a_cancel_takes_effect_at_once_and_leaves_the_others_alone(
    family: str, stage: Callable[[Engine, str], bool]
) -> None:
    others = [ask(f"o{seed}", prompt(seed, 9 * seed), max_tokens=20, ignore_eos=True) for seed in (1, 2)]
    victim = ask("victim", prompt(5, 70), max_tokens=40, ignore_eos=True)
    engine = make_engine(tiny(family), max_running=2 if stage is waiting else 3)
    outcomes = {request.id: Outcome() for request in [*others, victim]}
    for request in [*others, victim]:
        engine.assign(request)
    usage: Usage | None = None
    for events in steps(engine):
        for event in events:
            assert usage is None or event.id != "victim"
            outcomes[event.id].take(event)
        if usage is None and stage(engine, "victim"):
            usage = engine.cancel(RequestId("victim"))
            assert engine.cancel(RequestId("victim")) is None
    assert usage is not None
    assert usage == Usage(70, len(outcomes[RequestId("victim")].tokens))
    for request in others:
        assert outcomes[request.id] == solo(tiny(family), request)
    assert held(engine) == (0, 0, 0, 0)


def test_a_cancel_of_the_only_row_leaves_nothing_whenever_it_comes() -> None:
    for after in range(12):
        engine = make_engine(tiny())
        engine.assign(ask("r", prompt(1, 20), max_tokens=4, ignore_eos=True))
        told = [event for _ in range(after) for event in engine.step()]
        ended = any(event.finish for event in told)
        assert (engine.cancel(RequestId("r")) is None) is ended
        assert held(engine) == (0, 0, 0, 0)
        assert [event for events in steps(engine) for event in events] == []
    assert ended


def test_a_cancel_at_any_step_leaves_the_others_alone() -> None:
    others = [ask(f"o{seed}", prompt(seed, 9 * seed), max_tokens=12, ignore_eos=True) for seed in (1, 2)]
    alone = {request.id: solo(tiny(), request) for request in others}
    for after in range(20):
        engine = make_engine(tiny())
        outcomes = {request.id: Outcome() for request in others}
        for request in (others[0], ask("victim", prompt(3, 30), max_tokens=9, ignore_eos=True), others[1]):
            engine.assign(request)
        for step, events in enumerate(steps(engine)):
            for event in events:
                if event.id != "victim":
                    outcomes[event.id].take(event)
            if step == after:
                engine.cancel(RequestId("victim"))
        assert outcomes == alone


def test_a_cancel_of_an_unknown_or_ended_request_is_none() -> None:
    engine = make_engine(tiny())
    assert engine.cancel(RequestId("nobody")) is None
    run(engine, [ask("r", prompt(1, 3))])
    assert engine.cancel(RequestId("r")) is None


def test_a_cancel_of_one_of_two_identical_prompts_leaves_the_other_its_prefill() -> None:
    twins = [ask(name, prompt(1, 50)) for name in ("first", "second")]
    for gone, stays in (twins, twins[::-1]):
        engine = make_engine(tiny())
        for request in twins:
            engine.assign(request)
        engine.step()
        assert engine.cancel(gone.id) is not None
        outcome = Outcome()
        for events in steps(engine):
            for event in events:
                outcome.take(event)
        assert outcome == solo(tiny(), stays)
        assert engine.stats().prompt_tokens == 49


def test_a_clean_slate_drops_every_request_and_serves_the_next() -> None:
    engine = make_engine(tiny(), max_running=2)
    for seed in range(5):
        engine.assign(ask(f"r{seed}", prompt(seed, 20 + seed)))
    for _ in range(4):
        engine.step()
    engine.clear()
    assert not engine.busy
    assert held(engine) == (0, 0, 0, 0)
    request = ask("r0", prompt(0, 20))
    assert run(engine, [request])["r0"] == solo(tiny(), request)


# prefill


def test_identical_prompts_that_arrive_together_are_computed_once() -> None:
    loaded = tiny()
    twins = [
        ask(f"t{seed}", prompt(1, 50), sampling={"seed": seed, "temperature": 1.0}, max_tokens=4 + seed)
        for seed in range(4)
    ]
    engine = make_engine(loaded)
    outcomes = run(engine, twins)
    assert engine.stats().prompt_tokens == 49
    for twin in twins:
        assert outcomes[twin.id] == solo(loaded, twin)
    assert len({tuple(outcome.tokens) for outcome in outcomes.values()}) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_one_prefill_do_not_share_what_they_write(family: str) -> None:
    twins = [ask(f"t{seed}", prompt(1, 30), sampling={"seed": seed, "temperature": 1.5}) for seed in range(3)]
    outcomes = run(make_engine(tiny(family)), twins)
    for twin in twins:
        assert outcomes[twin.id] == solo(tiny(family), twin)


def test_prompts_under_different_salts_share_nothing() -> None:
    engine = make_engine(tiny())
    run(engine, [ask("a", prompt(1, 50)), ask("b", prompt(1, 50), salt="other")])
    assert engine.stats().prompt_tokens == 98


def test_no_more_rows_run_than_may_also_of_identical_prompts() -> None:
    engine = make_engine(tiny(), max_running=2)
    requests = [ask(f"t{seed}", prompt(seed // 3, 40), ignore_eos=True) for seed in range(6)]
    seen: list[WorkerStats] = []
    outcomes = run(engine, requests, before_step=lambda step: seen.append(engine.stats()))
    assert max(stats.running + stats.prefilling for stats in seen) == 2
    for request in requests:
        assert outcomes[request.id] == solo(tiny(), request)


@pytest.mark.parametrize("chunk", [8, 64])
def test_a_long_prompt_never_keeps_running_rows_from_their_next_token(chunk: int) -> None:
    """With no time to spare, one smallest chunk is computed between two tokens of each running row, and no more."""
    engine = make_engine(tiny(), prefill_chunk=chunk)
    for seed in (1, 2):
        engine.assign(ask(f"r{seed}", prompt(seed, 5), max_tokens=200, ignore_eos=True))
    while not {event.id for event in engine.step()} >= {"r1", "r2"}:
        assert engine.busy
    engine.assign(ask("long", prompt(3, 200), max_tokens=2, ignore_eos=True))
    done = 0
    done_at_token = {"r1": 0, "r2": 0}
    tokens_meanwhile = 0
    for events in steps(engine):
        if any(event.id == "long" for event in events):
            break
        done = max(done, engine.progress().get(RequestId("long"), 199))
        for event in events:
            assert len(event.tokens) == 1
            assert done - done_at_token[event.id] <= min(chunk, SMALLEST_CHUNK)
            done_at_token[event.id] = done
            tokens_meanwhile += 1
    assert done == 199
    assert tokens_meanwhile >= 2 * (199 // min(chunk, SMALLEST_CHUNK))


@pytest.mark.parametrize(("seconds_a_token", "size"), [(0.01, 29), (0.001, 64), (1.0, SMALLEST_CHUNK)])
def test_a_steps_first_chunk_is_what_its_measured_cost_allows(seconds_a_token: float, size: int) -> None:
    model = Watched(tiny().model)
    engine = make_engine(tiny(), prefill_chunk=64, stall_s=0.2999, model=model)
    model.widths.clear()
    engine.meter.prefill_cost.observe(100, 100 * seconds_a_token)
    engine.assign(ask("r", prompt(1, 500)))
    engine.step()
    assert model.widths[0] == size


def test_prompts_are_prefilled_in_the_order_of_arrival() -> None:
    engine = make_engine(tiny())
    for name in ("first", "second"):
        engine.assign(ask(name, prompt(len(name), 40)))
    engine.step()
    assert engine.progress() == {"first": 16, "second": 0}


def test_no_output_tokens_is_a_prefill_and_an_end() -> None:
    engine = make_engine(tiny())
    outcome = run(engine, [ask("r", prompt(1, 40), max_tokens=0)])["r"]
    assert (outcome.tokens, outcome.text) == ([], "")
    assert outcome.finish is not None
    assert (outcome.finish.reason, outcome.finish.usage) == ("length", Usage(40, 0))
    assert engine.stats().prompt_tokens == 39


@pytest.mark.parametrize(("every", "stall_s"), [(2, 0.0), (0, 60.0)], ids=["one by one", "in one forward"])
def test_a_prefill_that_fails_fails_its_own_requests_only(every: int, stall_s: float) -> None:
    loaded = tiny()
    good = [
        ask(f"g{seed}", prompt(seed, 30), sampling=NEVER_UNLUCKY, max_tokens=20, ignore_eos=True) for seed in (1, 2)
    ]
    bad = [ask(f"b{seed}", (*prompt(9, 20), UNLUCKY, 9)) for seed in (1, 2)]
    engine = make_engine(loaded, prefill_chunk=256, stall_s=stall_s, model=Raising(loaded.model, UNLUCKY))
    outcomes = run(engine, [good[0], *bad, good[1]], every=every)
    for request in bad:
        finish = outcomes[request.id].finish
        assert finish is not None
        assert (finish.reason, finish.message) == (
            "error",
            "prefill failed: [metal::malloc] Attempting to allocate too much",
        )
        assert outcomes[request.id].tokens == []
    for request in good:
        assert outcomes[request.id] == solo(loaded, request)
    assert held(engine) == (0, 0, 0, 0)


class Unreadable:
    """A vocabulary that cannot say what one token stands for."""

    def __init__(self, vocabulary: Vocabulary, token: int) -> None:
        self._vocabulary = vocabulary
        self._token = token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vocabulary, name)

    def bytes_of(self, token: int) -> bytes:
        if token == self._token:
            raise LookupError("no such token")
        return self._vocabulary.bytes_of(token)


def test_a_token_that_cannot_be_turned_into_text_ends_its_row_only() -> None:
    loaded = tiny()
    requests = [ask(f"r{seed}", prompt(seed, 20), max_tokens=12, ignore_eos=True) for seed in range(4)]
    alone = {request.id: solo(loaded, request) for request in requests}
    token = next(
        token
        for token in alone["r0"].tokens[2:]
        if token not in alone["r0"].tokens[:2] and not any(token in alone[f"r{seed}"].tokens for seed in (1, 2, 3))
    )
    place = alone["r0"].tokens.index(token)
    readable = loaded._replace(vocabulary=cast(Vocabulary, Unreadable(loaded.vocabulary, token)))
    outcomes = run(make_engine(readable), requests)
    finish = outcomes["r0"].finish
    assert finish is not None
    assert (finish.reason, finish.message) == (
        "error",
        f"output token {place} could not be turned into text: no such token",
    )
    assert outcomes["r0"].tokens == alone["r0"].tokens[:place]
    for seed in (1, 2, 3):
        assert outcomes[f"r{seed}"] == alone[f"r{seed}"]


# logits


def test_a_row_whose_logits_are_not_finite_ends_with_an_error_and_the_others_go_on() -> None:
    loaded = tiny()
    good = [
        ask(f"g{seed}", prompt(seed, 30), sampling=NEVER_UNLUCKY, max_tokens=20, ignore_eos=True) for seed in (1, 2)
    ]
    at_once = ask("at once", (*prompt(3, 25), UNLUCKY))
    later = ask("later", prompt(4, 25), sampling={"logit_bias": {UNLUCKY: 100.0}}, ignore_eos=True)
    at_last = replace(later, id=RequestId("at last"), limits=replace(later.limits, max_tokens=2))
    engine = make_engine(loaded, model=Poisoned(loaded.model, UNLUCKY))
    outcomes = run(engine, [good[0], at_once, later, at_last, good[1]])
    for request, committed in ((at_once, 0), (later, 1), (at_last, 1)):
        finish = outcomes[request.id].finish
        assert finish is not None
        assert finish.reason == "error"
        assert finish.message == (
            f"the model's logits are not finite at output token {committed}: 320 NaN and 0 inf among 320 logits"
        )
        assert outcomes[request.id].tokens == [UNLUCKY] * committed
    for request in good:
        assert outcomes[request.id] == solo(loaded, request)
    assert held(engine) == (0, 0, 0, 0)


def test_logprobs_are_those_of_the_model_at_each_content_token() -> None:
    loaded = tiny()
    law_of = {"temperature": 1.0, "seed": 4, "logit_bias": {50: 3.0}}
    requests = [
        ask("three", prompt(1, 12), sampling=law_of, logprobs=3, ignore_eos=True),
        ask("one", prompt(4, 12), sampling=law_of, logprobs=1, ignore_eos=True),
        ask("chosen", prompt(2, 12), sampling=law_of, logprobs=0, ignore_eos=True),
        ask("none", prompt(3, 12), sampling=law_of, ignore_eos=True),
    ]
    outcomes = run(make_engine(loaded), requests)
    assert outcomes["none"].logprobs == []
    assert [entry.top for entry in outcomes["chosen"].logprobs] == [()] * 8
    for request in requests[:3]:
        outcome = outcomes[request.id]
        logits = np.array(loaded.model(mx.array([[*request.prompt, *outcome.tokens]]))[0])
        for index, entry in enumerate(outcome.logprobs):
            raw = reference.logprobs(logits[len(request.prompt) - 1 + index])
            for listed in (entry.chosen, *entry.top):
                assert listed.logprob == pytest.approx(raw[listed.token], abs=1e-4)
                assert listed.bytes == loaded.vocabulary.name_of(listed.token)
            assert entry.chosen.token == outcome.tokens[index]
            assert [top.token for top in entry.top] == list(np.argsort(-raw)[: request.logprobs])


def test_an_end_of_sequence_token_has_no_logprobs() -> None:
    outcome = solo(tiny(), ask("r", prompt(1, 5), sampling={"logit_bias": {2: 100.0}}, logprobs=2, min_tokens=3))
    assert outcome.tokens[-1] == 2
    assert len(outcome.logprobs) == 3


# one row at a time


def test_a_model_without_batched_caches_serves_one_request_after_the_other() -> None:
    loaded = tiny()
    engine = make_engine(loaded, model=LoneCaches(loaded.model))
    assert engine.max_running == 1
    requests = [any_request(seed) for seed in range(6)]
    requests += [replace(requests[0], id=RequestId("twin"))]
    seen: list[WorkerStats] = []
    outcomes = run(engine, requests, before_step=lambda step: seen.append(engine.stats()))
    assert max(stats.running + stats.prefilling for stats in seen) == 1
    for request in requests:
        assert outcomes[request.id] == solo(loaded, request)


# counts


def test_the_engine_counts_what_it_does() -> None:
    engine = make_engine(tiny())
    run(engine, [ask("a", prompt(1, 20), ignore_eos=True), ask("b", prompt(2, 30), ignore_eos=True)])
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.output_tokens, stats.cached_tokens) == (19 + 29, 16, 0)
    assert (stats.stored_blocks, stats.dropped_blocks) == (0, 0)
    assert stats.decode_rows == 16
    assert 8 <= stats.decode_steps <= 20
    assert stats.decode_seconds > 0
    assert stats.prefill_seconds > 0
    assert stats.memory_bytes > 0
    engine.settle()
    assert replace(engine.stats(), memory_bytes=0) == WorkerStats()


def test_kv_bytes_are_those_of_running_and_prefilling_rows() -> None:
    engine = make_engine(tiny())
    engine.assign(ask("r", prompt(1, 40)))
    engine.step()
    layers, keys_and_values, heads, head_dim, four_bytes, capacity = 2, 2, 2, 16, 4, 256
    row = layers * keys_and_values * heads * head_dim * four_bytes * capacity
    assert engine.stats().kv_bytes == row
    while engine.progress():
        engine.step()
    assert engine.stats().kv_bytes == row


def test_a_chunk_stays_below_the_bound_while_rows_run() -> None:
    """What a forward takes varies; nobody waits for the one of an idle engine."""
    model = Watched(tiny().model)
    engine = make_engine(tiny(), prefill_chunk=64, stall_s=0.2999, model=model)
    engine.assign(ask("running", prompt(2, 5), max_tokens=50, ignore_eos=True))
    engine.step()
    engine.step()
    engine.forget_costs()
    engine.meter.prefill_cost.observe(100, 1.0)
    engine.assign(ask("r", prompt(1, 500)))
    model.widths.clear()
    while engine.progress().get(RequestId("r"), 0) == 0:
        engine.step()
    assert engine.progress()[RequestId("r")] == 20

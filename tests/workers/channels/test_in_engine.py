"""Thoughts, answers and calls in the engine: batches, drafts, resumption, and ends in the midst of a thought."""

import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from pomona.runtime.wire import replace
from pomona.workers.constraint.compiler import Compiler
from pomona.workers.constraint.tokens import Tokens, tokens_of
from pomona.workers.engine import Engine, EngineLimits
from pomona.workers.messages import (
    Constraint,
    Limits,
    Reasoning,
    Request,
    RequestId,
    Sampling,
    Speculation,
    TokenEvent,
    Tools,
)
from pomona.workers.models.load import load
from pomona.workers.speculation.proposal import Proposer
from pomona.workers.vocabulary import Vocabulary
from tests.support.formats import DIALECTS
from tests.workers.engines import in_memory
from tests.workers.speculation.scripted import Scripted

SCHEMA = '{"type": "object", "properties": {"a": {"enum": ["<|end|>", "</think>", "x"]}, "b": {"type": "boolean"}}}'


class Spoken(NamedTuple):
    model: Any
    vocabulary: Vocabulary
    tokens: Tokens


@cache
def spoken(name: str) -> Spoken:
    with TemporaryDirectory() as folder:
        model, tokenizer = load(DIALECTS[name].build(Path(folder) / "m"))
    vocabulary = Vocabulary(tokenizer)
    return Spoken(model, vocabulary, tokens_of(tokenizer, vocabulary))


@pytest.fixture(params=["opened think", "free think", "gemma", "harmony", "muse"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def compiler(name: str) -> Iterator[Compiler]:
    one = Compiler(spoken(name).tokens)
    yield one
    one.close(5.0)


def engine(name: str, compiler: Compiler, proposers: Sequence[Proposer] = (), *, ram: int = 0) -> Engine:
    model, vocabulary, tokens = spoken(name)
    return Engine(model, vocabulary, tokens.eos, EngineLimits(8, 64, 0.0), in_memory(ram), proposers, compiler)


class Told(NamedTuple):
    """What a client has of one request."""

    tokens: tuple[int, ...]
    channels: tuple[tuple[str, int, str], ...]
    """Each channel and call with its text."""
    reason: str
    thought: int

    @property
    def contents(self) -> list[str]:
        return [text for channel, _, text in self.channels if channel == "content"]


def told(events: Sequence[TokenEvent], committed: Sequence[int] = ()) -> Told:
    tokens = list(committed)
    texts: dict[tuple[str, int], str] = {}
    for event in events:
        assert event.position == len(tokens)
        tokens += event.tokens
        for delta in event.deltas:
            key = (delta.channel, delta.call)
            texts[key] = texts.get(key, "") + delta.text
    finish = events[-1].finish
    assert finish is not None
    assert finish.usage.completion_tokens == len(tokens)
    channels = tuple((channel, call, text) for (channel, call), text in sorted(texts.items()))
    return Told(tuple(tokens), channels, finish.reason, finish.usage.reasoning_tokens)


def run(one: Engine, requests: Sequence[Request]) -> dict[str, list[TokenEvent]]:
    events: dict[str, list[TokenEvent]] = {request.id: [] for request in requests}
    for request in requests:
        one.assign(request)
    for _ in range(20_000):
        if not one.busy:
            return events
        for event in one.step():
            events[event.id].append(event)
    raise AssertionError("the engine is still busy")


def ask(name: str, seed: int, **fields: Any) -> Request:
    """Different samplers, forms, budgets and tools; the same one for the same seed."""
    source = random.Random(seed)
    dialect = DIALECTS[name]
    kind = source.choice(["form", "form", "free", "calls"])
    tools = None
    if kind == "calls" and name == "harmony":
        tools = Tools(named={"f": Constraint("json_schema", SCHEMA)}, required=source.random() < 0.5)
    elif kind == "calls":
        call = Constraint("json_schema", SCHEMA)
        tools = Tools(open="<tool_call>", close="</tool_call>", required=source.random() < 0.5, constraint=call)
    request = Request(
        id=RequestId(f"r{seed}"),
        model="tiny",
        prompt=tuple(source.randrange(3, 300) for _ in range(source.randint(1, 40))),
        sampling=Sampling(seed=seed, temperature=source.choice([0.0, 0.8, 1.5])),
        limits=Limits(max_tokens=source.choice([20, 60])),
        constraint=Constraint("json_schema", SCHEMA) if kind == "form" else None,
        tools=tools,
        reasoning=Reasoning(format=dialect.format, begun=dialect.begun, budget=source.choice([None, 0, 3, 12])),
    )
    return replace(request, **fields)


def test_rows_of_a_batch_write_what_each_writes_alone(name: str, compiler: Compiler) -> None:
    requests = [ask(name, seed) for seed in range(8)]
    alone = {request.id: told(run(engine(name, compiler), [request])[request.id]) for request in requests}
    together = run(engine(name, compiler), requests)
    assert {key: told(events) for key, events in together.items()} == alone
    formed = [alone[request.id] for request in requests if request.constraint is not None]
    answers = [
        text for said in formed if said.reason == "stop" for channel, _, text in said.channels if channel == "content"
    ]
    assert answers
    for text in answers:
        json.loads(text)


def test_drafts_change_nothing(name: str, compiler: Compiler) -> None:
    """Right and wrong ones, through the closers, the headers and the ends of answers."""
    requests = [ask(name, seed, speculation=Speculation(method="draft", depth=5)) for seed in range(6)]
    plain = [replace(request, speculation=Speculation(method="off")) for request in requests]
    expected = {key: told(events) for key, events in run(engine(name, compiler), plain).items()}
    drafter = Scripted({key: each.tokens for key, each in expected.items()}, 0.15, spoken(name).tokens.size)
    drafted = run(engine(name, compiler, [drafter]), requests)
    assert {key: told(events) for key, events in drafted.items()} == expected
    accepted = sum(events[-1].finish.usage.accepted_tokens for events in drafted.values() if events[-1].finish)
    assert accepted > 20


def test_resumed_anywhere_it_goes_on_as_if_nothing_had_happened(name: str, compiler: Compiler) -> None:
    for seed in (1, 2, 5):
        request = ask(name, seed)
        whole = run(engine(name, compiler), [request])[request.id]
        expected = told(whole)
        for count in range(1, len(whole), max(1, len(whole) // 6)):
            before = whole[:count]
            committed = tuple(token for event in before for token in event.tokens)
            resumed = run(engine(name, compiler), [replace(request, committed=committed)])[request.id]
            assert told([*before, *resumed]) == expected


def test_an_end_in_a_thought_becomes_its_close_and_the_row_goes_on(name: str, compiler: Compiler) -> None:
    """Every row is driven to end at once: the thought closes, the answer follows, alone and in a batch, with drafts."""
    eos = min(spoken(name).tokens.eos)
    lead = DIALECTS[name].thinks.split("{}")[0]
    begun = DIALECTS[name].begun + lead if lead else DIALECTS[name].begun
    requests = [
        ask(
            name,
            seed,
            constraint=Constraint("json_schema", SCHEMA),
            tools=None,
            sampling=Sampling(seed=seed, temperature=1.0, logit_bias={eos: 100.0}),
            limits=Limits(max_tokens=60),
            reasoning=Reasoning(format=DIALECTS[name].format, begun=begun),
        )
        for seed in range(4)
    ]
    for ram in (0, 1 << 24):
        for proposers in ((), (Scripted({}, 1.0, 300),)):
            for key, events in run(engine(name, compiler, proposers, ram=ram), requests).items():
                said = told(events)
                assert said.reason in ("stop", "length"), key
                assert said.tokens[0] != eos
                texts = {channel: text for channel, _, text in said.channels}
                assert texts.get("reasoning", "") == ""
                assert texts["content"].startswith("{")
                assert said.reason == "length" or json.loads(texts["content"]) is not None


def test_stop_strings_end_answers_and_no_thoughts(compiler: Compiler, name: str) -> None:
    dialect = DIALECTS[name]
    reasoning = Reasoning(format=dialect.format, begun=dialect.begun + dialect.thinks.split("{}")[0], budget=20)
    tried = 0
    for seed in range(20):
        sampling = Sampling(seed=seed, temperature=1.0)
        limits = Limits(max_tokens=60)
        free = ask(name, 3, tools=None, constraint=None, reasoning=reasoning, limits=limits, sampling=sampling)
        texts = {channel: text for channel, _, text in told(run(engine(name, compiler), [free])["r3"]).channels}
        both = set(texts.get("reasoning", "")) & set(texts.get("content", ""))
        stop = next((letter for letter in sorted(both) if letter.isalpha()), "")
        if not stop:
            continue
        request = replace(free, limits=Limits(max_tokens=60, stop=(stop,)))
        cut = {channel: text for channel, _, text in told(run(engine(name, compiler), [request])["r3"]).channels}
        assert cut["reasoning"] == texts["reasoning"]
        assert cut.get("content", "") == texts["content"].partition(stop)[0]
        tried += 1
        if tried == 2:
            return
    raise AssertionError("no letter is in a thought and in its answer")

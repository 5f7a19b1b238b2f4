"""Greedy answers of the real model: fifty prompts, each way of drafting, alone and beside seven others."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from pomona.config import MethodChoice
from pomona.runtime.wire import replace
from pomona.workers.engine import Engine, EngineLimits
from pomona.workers.messages import Request, RequestId, Sampling, Speculation
from pomona.workers.models.load import load
from pomona.workers.speculation.layers import Layers
from pomona.workers.speculation.ngram import NgramProposer
from pomona.workers.speculation.proposal import Proposer
from pomona.workers.vocabulary import Vocabulary
from tests.workers.engines import Outcome, ask, in_memory, run

SUBJECTS = (
    "a lighthouse",
    "apple trees",
    "the sea at night",
    "an old bicycle",
    "bread",
    "a long train journey",
    "prime numbers",
    "the moon",
    "a market in spring",
    "glass",
)
TASKS = (
    "Write two sentences about {}.",
    "List five things that one should know about {}, one a line.",
    "Repeat the next line three times, word for word.\nHere is what I know about {}: not much, but I like it.",
    "Is it true that {} can be dangerous? Give a reason.",
    'Fill in this JSON about {} and print it twice: {{"name": "", "colour": "", "price": 0}}',
)
TOKENS = 32
WIDTH = 8
WAYS: dict[MethodChoice, int | None] = {"ngram": 4, "layers": 2, "auto": None}
OFF = Speculation(method="off")

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(3600)]


class Real(NamedTuple):
    """The model, and its plain greedy answer to each prompt."""

    model: object
    vocabulary: Vocabulary
    eos: frozenset[int]
    requests: list[Request]
    answers: dict[str, list[int]]

    def engine(self) -> Engine:
        proposers: list[Proposer] = [NgramProposer(), Layers(self.model)]
        return Engine(
            self.model, self.vocabulary, self.eos, EngineLimits(WIDTH, 512, 1.0), in_memory(1 << 28), proposers
        )


@pytest.fixture(scope="module")
def real(smollm2_folder: Path) -> Real:
    model, tokenizer = load(smollm2_folder)
    requests = []
    for number, (subject, task) in enumerate((subject, task) for subject in SUBJECTS for task in TASKS):
        turn = [{"role": "user", "content": task.format(subject)}]
        prompt = list(tokenizer.apply_chat_template(turn, add_generation_prompt=True))
        requests.append(replace(ask(f"p{number}", prompt, max_tokens=TOKENS), speculation=OFF))
    known = Real(model, Vocabulary(tokenizer), frozenset(tokenizer.eos_token_ids), requests, {})
    engine = known.engine()
    for request in requests:
        known.answers[request.id] = run(engine, [request])[request.id].tokens
    return known


def drafting(request: Request, method: MethodChoice) -> Request:
    return replace(request, speculation=Speculation(method=method, depth=WAYS[method]))


@pytest.mark.parametrize("method", WAYS)
def test_alone_they_are_the_plain_ones(real: Real, method: MethodChoice) -> None:
    engine = real.engine()
    assert len(real.requests) == 50
    answers = {request.id: run(engine, [drafting(request, method)])[request.id].tokens for request in real.requests}
    assert answers == real.answers
    stats = engine.stats()
    assert stats.verify_steps > 0
    assert stats.saved_forwards > 0


def test_in_a_mixed_batch_they_are_the_plain_ones(real: Real) -> None:
    """Every prompt with every method, always eight at once, some of whose neighbours sample and some do not draft."""
    engine = real.engine()
    outcomes: dict[str, Outcome] = {}
    waiting = list(mixed(real.requests))
    while waiting:
        batch, waiting = waiting[:WIDTH], waiting[WIDTH:]
        outcomes |= run(engine, batch)
    wrong = [
        name
        for name, outcome in outcomes.items()
        if not name.startswith("hot") and outcome.tokens != real.answers[name.partition(" ")[0]]
    ]
    assert wrong == []
    assert len(outcomes) == 50 * (len(WAYS) + 2)
    assert engine.stats().saved_forwards > 0


def mixed(requests: Sequence[Request]) -> Iterator[Request]:
    for index, request in enumerate(requests):
        for method in WAYS:
            yield replace(drafting(request, method), id=RequestId(f"{request.id} {method}"))
        yield replace(request, id=RequestId(f"{request.id} off"))
        sampling = Sampling(seed=index, temperature=0.8, top_p=0.95, frequency_penalty=0.3)
        yield replace(drafting(request, "ngram"), id=RequestId(f"hot {request.id}"), sampling=sampling)

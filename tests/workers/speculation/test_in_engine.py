"""The proposers that are models, in the engine: whatever they guess, the answers are those of plain decoding."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import msgspec
import pytest

from pomona.config import Method
from pomona.runtime.wire import replace
from pomona.workers.messages import Request, Sampling, Speculation
from pomona.workers.models.load import load
from pomona.workers.sampling.draw import distribution
from pomona.workers.speculation.anatomy import logit_width
from pomona.workers.speculation.draft_model import DraftModel
from pomona.workers.speculation.layers import Layers
from pomona.workers.speculation.mtp import open_mtp
from pomona.workers.speculation.proposal import Proposer
from tests.workers.engines import any_request, ask, run, tiny, words
from tests.workers.speculation.drafts import row_of
from tests.workers.speculation.heads import any_tokens, random_pair
from tests.workers.test_engine_drafts import alone, drafting, engine_of, same


class Pair(NamedTuple):
    """A model, and what a fresh engine of it runs."""

    model: Any
    method: Method
    listened: Any
    proposer: Proposer


def pair(name: str, folder: Path) -> Pair:
    match name:
        case "itself":
            model = tiny().model
            return Pair(model, "draft", model, DraftModel(model, logit_width(model)))
        case "another":
            model = tiny("gemma3_text").model
            return Pair(model, "draft", model, DraftModel(tiny().model, logit_width(model)))
        case "half":
            model = tiny("gemma3_text").model
            return Pair(model, "layers", model, Layers(model, 2))
        case "quarter":
            model = tiny().model
            return Pair(model, "layers", model, Layers(model))
        case _:
            model, _ = load(random_pair(folder / "model"))
            mtp = open_mtp(folder / "model", model, any_tokens(0, 20), "pair")
            assert mtp is not None
            return Pair(model, "mtp", mtp.model, mtp)


NAMES = ("itself", "another", "half", "quarter", "head")


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_plain_decoding(name: str, tmp_path: Path) -> None:
    """Of mixed rows that join one after another, draft to different depths or not at all, and end when they like."""
    model, method, listened, proposer = pair(name, tmp_path)
    requests = [
        drafting(any_request(seed), 1 + seed % 4, method) if seed % 4 else replace(any_request(seed), speculation=OFF)
        for seed in range(7)
    ]
    engine = engine_of(listened, [proposer], max_running=5)
    assert engine.methods == (method,)
    assert same(run(engine, requests, every=2), alone(model, requests))
    figures = engine.stats().speculation[method]
    assert sum(figures.tested) > 20
    assert getattr(proposer, "nbytes", 0) == 0


OFF = Speculation(method="off")


def test_a_draft_model_that_is_the_model_is_always_right(tmp_path: Path) -> None:
    model, _, _, proposer = pair("itself", tmp_path)
    engine = engine_of(model, [proposer])
    run(engine, [drafting(ask(f"r{seed}", words(seed, 5 + seed), max_tokens=20), 3) for seed in range(3)])
    figures = engine.stats().speculation["draft"]
    assert figures.accepted == figures.tested
    assert len(figures.tested) == 3


PROMPT = words(5, 6)


def law_of_three(model: Any, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The probability of each answer of three tokens, by enumeration."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer: dict[tuple[int, ...], float] = {}
        law = row_of("law", PROMPT, **msgspec.structs.asdict(sampling)).law()
        for answer, share in found.items():
            logits = model(mx.array([[*PROMPT, *answer]]))[:, -1]
            probabilities = distribution(logits, [law])[0].tolist()
            longer |= {(*answer, token): share * p for token, p in enumerate(probabilities) if p > 0}  # type: ignore[arg-type]
        found = longer
    return found


def sampled(seeds: Sequence[int], method: Method, sampling: Sampling) -> list[Request]:
    return [
        replace(
            ask(f"s{seed}", PROMPT, sampling=replace(sampling, seed=seed), max_tokens=3, ignore_eos=True),
            speculation=Speculation(method=method, depth=2),
        )
        for seed in seeds
    ]


@pytest.mark.parametrize("name", ["another", "half", "head"])
def test_sampled_answers_have_the_law_of_plain_decoding(name: str, tmp_path: Path) -> None:
    model, method, listened, proposer = pair(name, tmp_path)
    favoured = {40: 60.0, 41: 60.0}  # so that a random head, too, is right now and then
    sampling = Sampling(seed=0, temperature=2.0, top_k=2, repeatable=False, logit_bias=favoured)
    engine = engine_of(listened, [proposer], max_running=32)
    counts: Counter[tuple[int, ...]] = Counter()
    for first in range(0, 640, 32):
        outcomes = run(engine, sampled(range(first, first + 32), method, sampling))
        counts.update(tuple(outcome.tokens) for outcome in outcomes.values())
    expected = {answer: 640 * share for answer, share in law_of_three(model, sampling).items()}
    assert counts.keys() <= expected.keys()
    assert len(expected) == 8
    distance = sum((counts[answer] - mean) ** 2 / mean for answer, mean in expected.items())
    assert distance < 24.3  # p = 0.001, 7 degrees of freedom
    figures = engine.stats().speculation[method]
    assert 0 < sum(figures.accepted) < sum(figures.tested)


def test_drafts_sampled_from_the_law_itself_are_kept(tmp_path: Path) -> None:
    """A token drawn anew would seldom be the same."""
    model, _, _, proposer = pair("itself", tmp_path)
    engine = engine_of(model, [proposer])
    run(engine, sampled(range(8), "draft", Sampling(seed=0, temperature=1.5, repeatable=False)))
    figures = engine.stats().speculation["draft"]
    assert figures.accepted == figures.tested == (8, 8)

"""A draft model that is the model itself, so that what it is to propose is known."""

import random
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest

from pomona.workers.batch import Batch
from pomona.workers.messages import RequestId
from pomona.workers.models.error import ModelError
from pomona.workers.models.load import load
from pomona.workers.randomness import Purpose, uniform
from pomona.workers.row import Row
from pomona.workers.sampling.draw import distribution
from pomona.workers.sampling.law import RowLaw
from pomona.workers.speculation.anatomy import Unfit, logit_width
from pomona.workers.speculation.draft_model import (
    CATCH_UP,
    NEAR,
    DraftModel,
    open_draft_model,
    vocabulary_digest,
)
from pomona.workers.speculation.drafting import draw_drafts, fitted
from pomona.workers.speculation.proposal import Ask, Proposal
from pomona.workers.vocabulary import Vocabulary
from tests.support.tiny_model import build_tiny_model
from tests.workers.engines import tiny, words
from tests.workers.families import model_of
from tests.workers.speculation.drafts import HOT, commit, continuation, last_logits, row_of


class Drafter:
    """Asks a draft model; the batch is nothing to it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.drafts = DraftModel(model, logit_width(model))
        self._batch = Batch(tiny().model)

    def ask(self, *asks: tuple[Row, int]) -> list[Proposal]:
        return self.drafts.propose(self._batch, [Ask(row, depth) for row, depth in asks])


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3"])
def test_what_was_refused_leaves_no_trace(family: str) -> None:
    """Rows of different lengths, depths and acceptance, for tokens enough to leave the sliding window behind."""
    source = random.Random(5)
    drafter = Drafter(tiny(family).model)
    rows = [row_of(f"r{length}", words(length, length)) for length in (1, 6, 13)]
    for _ in range(12):
        asking = [(row, source.randint(1, 4)) for row in rows if source.random() < 0.8]
        for (row, depth), proposal in zip(asking, drafter.ask(*asking) if asking else [], strict=True):
            assert proposal == Proposal(continuation(drafter.model, row.tokens, depth))
            commit(row, [*proposal.tokens[: source.randint(0, depth)], source.randrange(3, 320)])


def test_the_last_token_is_taken_again_where_it_was_drafted() -> None:
    """As when only a part of what was drafted is verified."""
    drafter = Drafter(tiny().model)
    row = row_of("r", words(1, 5))
    (proposal,) = drafter.ask((row, 4))
    commit(row, proposal.tokens[:2])
    assert drafter.ask((row, 2)) == [Proposal(continuation(drafter.model, row.tokens, 2))]


class Masked(NamedTuple):
    """A row of which one place allows a single token."""

    row: Row
    allowed: int

    def law(self) -> RowLaw:
        mask = np.zeros(10, np.uint32)
        mask[self.allowed // 32] = 1 << self.allowed % 32
        return self.row.law()._replace(mask=mask)


@pytest.mark.parametrize("settings", [{}, HOT])
def test_the_mask_of_the_next_token_is_not_that_of_those_behind_it(settings: dict[str, Any]) -> None:
    row: Any = Masked(row_of("r", words(1, 5), **settings, logit_bias={9: 50.0}), allowed=40)
    flat = mx.zeros((1, 320))
    (proposal,) = draw_drafts([Ask(row, 2)], flat, lambda tokens: flat, 320)
    assert proposal.tokens == (40, 9)


def test_a_row_that_was_not_asked_for_long_catches_up() -> None:
    drafter = Drafter(tiny().model)
    row, other = row_of("slow", words(1, 5)), row_of("other", words(2, 30))
    drafter.ask((row, 2), (other, 2))
    commit(row, words(3, NEAR + 20))
    commit(other, words(4, NEAR - 1))
    for proposal, each in zip(drafter.ask((row, 3), (other, 3)), (row, other), strict=True):
        assert proposal.tokens == continuation(drafter.model, each.tokens, 3)


def test_a_long_prompt_is_computed_in_bounded_parts_and_keeps_nobody_waiting() -> None:
    drafter = Drafter(tiny().model)
    long, short = row_of("long", words(1, 2 * CATCH_UP + 50)), row_of("short", words(2, 5))
    for _ in range(2):
        proposals = drafter.ask((short, 2), (long, 2))
        assert [len(each.tokens) for each in proposals] == [2, 0]
        commit(short, [7])
    assert drafter.ask((long, 2))[0].tokens == continuation(drafter.model, long.tokens, 2)


def test_two_long_prompts_share_what_one_call_computes() -> None:
    drafter = Drafter(tiny().model)
    one, two = (row_of(f"r{seed}", words(seed, CATCH_UP)) for seed in (1, 2))
    assert [len(each.tokens) for each in drafter.ask((one, 1), (two, 1))] == [1, 0]
    assert drafter.ask((two, 1))[0].tokens == continuation(drafter.model, two.tokens, 1)


def test_a_request_that_left_holds_nothing() -> None:
    drafter = Drafter(tiny().model)
    rows = [row_of(f"r{length}", words(length, length)) for length in (3, 20, 40)]
    drafter.ask(*((row, 2) for row in rows))
    drafter.drafts.forget(rows[0].request.id)
    drafter.drafts.forget(RequestId("never seen"))
    for proposal, row in zip(drafter.ask(*((row, 2) for row in rows[1:])), rows[1:], strict=True):
        assert proposal.tokens == continuation(drafter.model, row.tokens, 2)
    assert drafter.drafts.nbytes > 0
    for row in rows:
        drafter.drafts.forget(row.request.id)
    assert drafter.drafts.nbytes == 0


def test_a_request_that_comes_again_with_fewer_tokens_begins_anew() -> None:
    drafter = Drafter(tiny().model)
    drafter.ask((row_of("r", words(1, 20)), 2))
    again = row_of("r", words(2, 9))
    assert drafter.ask((again, 2))[0].tokens == continuation(drafter.model, again.tokens, 2)


def test_sampled_drafts_come_with_what_they_were_drawn_from() -> None:
    drafter = Drafter(tiny().model)
    settings = {**HOT, "seed": 11, "temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.5}
    row, greedy = row_of("r", words(1, 9), **settings), row_of("greedy", words(2, 4))
    commit(row, [5, 6])
    sampled, likeliest = drafter.ask((row, 3), (greedy, 2))
    assert (likeliest.distributions, likeliest.tokens) == (None, continuation(drafter.model, greedy.tokens, 2))
    assert sampled.distributions is not None
    assert sampled.distributions.shape[0] == len(sampled.tokens) == 3
    for index, token in enumerate(sampled.tokens):
        logits = last_logits(drafter.model, [*row.tokens, *sampled.tokens[:index]])
        law = row.law()._replace(position=2 + index)
        own = np.array(distribution(logits, [law])[0])
        np.testing.assert_allclose(np.array(sampled.distributions[index]), own, atol=1e-5)
        assert token == drawn(np.array(sampled.distributions[index]), law)


def drawn(probabilities: np.ndarray, law: RowLaw) -> int:
    reached = np.cumsum(probabilities.astype(np.float64))
    return int(np.argmax(reached > uniform(law.sampling.seed, law.position, Purpose.DRAFT) * reached[-1]))


def test_what_is_drafted_has_the_law_that_is_told() -> None:
    """Over many seeds the first draft's frequencies are those of its distribution."""
    drafter = Drafter(tiny().model)
    rows = [row_of(f"s{seed}", words(1, 4), **HOT, seed=seed, top_k=4) for seed in range(400)]
    proposals = drafter.ask(*((row, 1) for row in rows))
    told = proposals[0].distributions
    assert told is not None
    expected = 400 * np.array(told[0], np.float64)
    counts = np.bincount([each.tokens[0] for each in proposals], minlength=len(expected))
    support = expected > 0
    assert support.sum() == 4
    assert not counts[~support].any()
    assert ((counts - expected)[support] ** 2 / expected[support]).sum() < 16.3  # p = 0.001, 3 degrees


def test_a_repeatable_row_drafts_the_likeliest_token_under_its_own_bias() -> None:
    drafter = Drafter(tiny().model)
    row = row_of("r", words(1, 4), temperature=1.0, logit_bias={33: 1e4})
    assert drafter.ask((row, 2)) == [Proposal((33, 33))]


class Blind:
    """A model of unknown parts."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.layers = model.layers

    def __call__(self, inputs: mx.array, cache: Any = None) -> Any:
        return self._model(inputs, cache=cache)


def test_a_model_of_unknown_parts_drafts_as_a_whole() -> None:
    drafter = Drafter(Blind(tiny().model))
    rows = [row_of(f"r{length}", words(length, length)) for length in (2, 30)]
    for proposal, row in zip(drafter.ask(*((row, 2) for row in rows)), rows, strict=True):
        assert proposal.tokens == continuation(drafter.model, row.tokens, 2)


class Faulty(Blind):
    """Its logits are NaN behind one token."""

    def __call__(self, inputs: mx.array, cache: Any = None) -> Any:
        return mx.where((inputs == 50)[..., None], mx.nan, self._model(inputs, cache=cache))


@pytest.mark.parametrize("settings", [{}, HOT])
def test_nothing_is_drafted_from_logits_that_are_not_finite(settings: dict[str, Any]) -> None:
    drafter = Drafter(Faulty(tiny().model))
    leads = row_of("leads", words(1, 4), **settings, logit_bias={50: 1e4})
    ends, sound = row_of("ends", (5, 50), **settings), row_of("sound", words(2, 4), **settings)
    first, none, all_three = drafter.ask((leads, 3), (ends, 3), (sound, 3))
    assert (first.tokens, none) == ((50,), Proposal())
    assert len(all_three.tokens) == 3
    if settings:
        assert first.distributions is not None
        assert first.distributions.shape[0] == 1


def test_tokens_that_the_draft_model_lacks_have_no_probability() -> None:
    logits = mx.array([[1.0, 2.0], [3.0, 4.0]])
    row = row_of("r", (3,), **HOT)
    wide = np.array(distribution(fitted(logits, 4), [row.law(), row.law()]))
    assert wide.shape == (2, 4)
    assert not wide[:, 2:].any()
    np.testing.assert_allclose(wide.sum(axis=1), 1, atol=1e-6)
    assert fitted(logits, 1).tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize("family", ["hybrid", "recurrent", "chunked"])
def test_layers_that_hold_state_cannot_draft(family: str) -> None:
    model = model_of(family)
    with pytest.raises(Unfit, match="cannot take drafts back"):
        DraftModel(model, logit_width(model))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    build_tiny_model(folder / "target", "qwen3", seed=1)
    build_tiny_model(folder / "small", seed=2, layers=1)
    build_tiny_model(folder / "stranger", vocab=300)
    build_tiny_model(folder / "stateful", "qwen3_next")
    return folder


def test_a_draft_model_of_the_same_tokeniser_is_loaded(folders: Path) -> None:
    model, tokenizer = load(folders / "target")
    drafts = open_draft_model(folders / "small", "target", Vocabulary(tokenizer), logit_width(model))
    assert drafts.method == "draft"


@pytest.mark.parametrize(
    ("name", "reason"), [("stranger", "stranger .300 tokens. and big .320 tokens."), ("stateful", "stateful .* big")]
)
def test_another_model_is_refused_with_both_names(folders: Path, name: str, reason: str) -> None:
    _, tokenizer = load(folders / "target")
    with pytest.raises(ModelError, match=reason):
        open_draft_model(folders / name, "big", Vocabulary(tokenizer), 320)


def test_the_digest_tells_vocabularies_apart(folders: Path) -> None:
    digests = {name: vocabulary_digest(Vocabulary(load(folders / name)[1])) for name in ("target", "small", "stranger")}
    assert digests["target"] == digests["small"] != digests["stranger"]

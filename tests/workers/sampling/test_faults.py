"""Logits that are not finite, on every lane: greedy, sampled, masked and verified."""

import math

import mlx.core as mx
import numpy as np
import pytest

from pomona.workers.messages import Sampling
from pomona.workers.sampling import reference
from pomona.workers.sampling.draw import draw
from pomona.workers.sampling.draws import Fault
from pomona.workers.sampling.law import Adjustment, Drafted, RowLaw
from tests.workers.sampling.cases import VOCABULARY, Case, fields, mask_of

PLAIN = RowLaw(Sampling(seed=1), 0, None, None)
LANES = {
    "greedy": RowLaw(Sampling(seed=1, temperature=0.0), 0, None, None),
    "sampled": PLAIN,
    "filtered": RowLaw(
        Sampling(seed=1, top_p=0.5, min_p=0.1, top_k=3, xtc_probability=1.0, xtc_threshold=0.1), 0, None, None
    ),
    "adjusted": RowLaw(Sampling(seed=1), 0, Adjustment([17], [2.0], [-3.0]), 2),
    "masked": RowLaw(Sampling(seed=1), 0, None, None, mask_of([3, 4], 2)),
    "verified": RowLaw(Sampling(seed=1), 0, None, None, drafted=Drafted(3, 0)),
    "greedy beside others": RowLaw(Sampling(seed=1, temperature=0.0), 0, None, 1),
}
DRAFTS = mx.full((1, VOCABULARY), 1 / VOCABULARY)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("bad", "nan", "inf"), [([math.nan], 1, 0), ([math.inf], 0, 1), ([math.nan, math.inf, math.nan], 2, 1)]
)
def test_a_row_that_is_not_finite_is_flagged_and_counted_and_leaves_the_others_alone(
    lane: str, bad: list[float], nan: int, inf: int
) -> None:
    random = np.random.default_rng(6)
    cases = [Case(random) for _ in range(6)]
    logits = np.stack([case.logits for case in cases])
    rows = [case.row._replace(logprobs=2) for case in cases]
    rows[2] = LANES[lane]
    clean = draw(mx.array(logits), rows, DRAFTS)
    assert clean.finite.tolist() == [True] * 6
    logits[2, 17 : 17 + len(bad)] = bad
    poisoned = draw(mx.array(logits), rows, DRAFTS)
    assert poisoned.finite.tolist() == [True, True, False, True, True, True]
    assert poisoned.fault(2) == Fault(nan, inf, VOCABULARY, draft=False)
    assert str(poisoned.fault(2)) == f"{nan} NaN and {inf} inf among {VOCABULARY} logits"
    for index in (0, 1, 3, 4, 5):
        assert fields(poisoned, index) == fields(clean, index)
    assert 0 <= int(poisoned.tokens[2]) < VOCABULARY  # goes through the next forward


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("vocabulary", [VOCABULARY, 1000, 4099])
def test_a_row_alone_is_flagged_wherever_the_fault_is(lane: str, vocabulary: int) -> None:
    for bad in (math.nan, math.inf):
        for place in (0, 1, 16, 31, vocabulary // 2, vocabulary - 2, vocabulary - 1):
            logits = np.zeros((1, vocabulary), dtype=np.float32)
            logits[0, place] = bad
            draws = draw(mx.array(logits), [LANES[lane]], mx.full((1, vocabulary), 1 / vocabulary))
            assert draws.finite.tolist() == [False]


@pytest.mark.parametrize("lane", LANES)
def test_a_token_that_the_model_rules_out_is_no_fault(lane: str) -> None:
    logits = np.random.default_rng(7).normal(0, 3, (1, VOCABULARY)).astype(np.float32)
    logits[0, 5:] = -math.inf
    draws = draw(mx.array(logits), [LANES[lane]], DRAFTS)
    assert draws.finite.tolist() == [True]
    assert int(draws.tokens[0]) < 5


@pytest.mark.parametrize("lane", LANES)
def test_a_row_without_any_token_left_is_a_fault(lane: str) -> None:
    draws = draw(mx.full((1, VOCABULARY), -math.inf), [LANES[lane]], DRAFTS)
    assert draws.finite.tolist() == [False]
    assert str(draws.fault(0)) == "0 NaN and 0 inf among 50 logits, but no finite one is left to draw from"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_that_leaves_no_token_of_the_models_is_a_fault(temperature: float) -> None:
    law = Sampling(seed=1, temperature=temperature)
    logits = mx.array([[0.0, -math.inf, 1.0]] * 2)
    draws = draw(logits, [RowLaw(law, 0, None, None, mask_of([1], 1)), RowLaw(law, 0, None, None)])
    assert draws.finite.tolist() == [False, True]


def test_half_precision_logits_near_their_limit_are_finite() -> None:
    lowest = mx.full((1, 300), -3.38e38, dtype=mx.bfloat16)
    assert draw(lowest, [PLAIN]).finite.tolist() == [True]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_reference_raises_with_the_counts(temperature: float) -> None:
    logits = np.array([1.0, math.nan, math.inf, math.nan, -math.inf])
    with pytest.raises(ValueError, match="2 NaN and 1 inf among 5 logits"):
        reference.distribution(logits, Sampling(seed=0, temperature=temperature))
    with pytest.raises(ValueError, match="0 NaN and 0 inf among 2 logits"):
        reference.distribution(np.full(2, -math.inf), Sampling(seed=0, temperature=temperature))

import math

import mlx.core as mx
import numpy as np
import pytest

from pomona.workers.messages import Sampling
from pomona.workers.sampling import reference
from pomona.workers.sampling.adjust import adjust
from pomona.workers.sampling.draw import distribution, draw
from pomona.workers.sampling.law import Adjustment, RowLaw
from tests.workers.sampling.cases import Mask, fields, mask_of


def row(mask: Mask | None, *, adjustment: Adjustment | None = None, **law: float) -> RowLaw:
    return RowLaw(Sampling(seed=1, **law), 0, adjustment, None, mask)  # type: ignore[arg-type]


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("words", [0, 1, 2, 3, 4, 6])
def test_a_token_is_allowed_by_its_bit_and_by_none_that_is_missing(vocabulary: int, words: int) -> None:
    random = np.random.default_rng(vocabulary * 7 + words)
    allowed = [token for token in range(32 * words) if random.integers(2)]
    logits = random.normal(0, 3, vocabulary).astype(np.float32)
    (left,) = np.array(adjust(mx.array(logits[None]), [row(mask_of(allowed, words))]))
    kept = np.isin(np.arange(vocabulary), allowed)
    assert np.array_equal(left, np.where(kept, logits, -math.inf))
    assert np.array_equal(left, reference.masked(logits.astype(np.float64), mask_of(allowed, words)))


def test_masks_of_different_length_stay_on_their_own_rows_and_free_rows_are_untouched() -> None:
    logits = mx.array(np.random.default_rng(1).normal(0, 3, (5, 70)).astype(np.float32))
    rows = [row(mask_of([0, 5], 1)), row(None), row(mask_of([69], 3)), row(None), row(mask_of([31, 32], 2))]
    left = np.array(adjust(logits, rows))
    finite = [np.flatnonzero(np.isfinite(each)).tolist() for each in left]
    assert finite == [[0, 5], list(range(70)), [69], list(range(70)), [31, 32]]
    kept = np.isfinite(left)
    assert np.array_equal(left[kept], np.array(logits)[kept])


def test_without_anything_to_do_the_logits_are_the_very_same() -> None:
    logits = mx.zeros((2, 8))
    assert adjust(logits, [row(None), row(None, adjustment=Adjustment([], [], []))]) is logits


def test_the_mask_has_the_last_word_over_bias_and_penalties() -> None:
    law = Adjustment([3, 4], [1.0, 1.0], [100.0, 1.0])
    for temperature in (0.0, 0.7):
        masked = row(mask_of([2, 4], 1), adjustment=law, temperature=temperature, top_k=1)
        assert draw(mx.zeros((1, 8)), [masked]).tokens.tolist() == [4]


def test_filters_look_at_what_the_mask_has_left() -> None:
    """The top-p mass is of the allowed tokens, which are renormalised by the mask."""
    logits = mx.array(np.log([[0.9, 0.06, 0.03, 0.01]]).astype(np.float32))
    allowed = mask_of([1, 2, 3], 1)
    assert distribution(logits, [row(allowed, top_p=0.5)])[0].tolist() == [0, 1, 0, 0]
    assert distribution(logits, [row(allowed, top_k=2)])[0].tolist() == pytest.approx([0, 2 / 3, 1 / 3, 0])
    assert distribution(logits, [row(allowed, min_p=0.4)])[0].tolist() == pytest.approx([0, 2 / 3, 1 / 3, 0])


def test_a_neighbours_mask_changes_nothing_of_a_row() -> None:
    logits = mx.array(np.random.default_rng(2).normal(0, 3, (3, 40)).astype(np.float32))
    free = [RowLaw(Sampling(seed=seed, top_p=0.9), seed, None, 2) for seed in range(3)]
    alone = draw(logits, free)
    beside = draw(logits, [free[0], free[1]._replace(mask=mask_of([7], 2)), free[2]])
    assert [fields(alone, index) for index in (0, 2)] == [fields(beside, index) for index in (0, 2)]
    assert beside.tokens.tolist()[1] == 7


def test_log_probabilities_are_those_before_the_mask() -> None:
    logits = mx.array([[1.0, 2.0, 3.0]])
    draws = draw(logits, [RowLaw(Sampling(seed=0), 0, None, 1, mask_of([0], 1))])
    assert draws.tokens.tolist() == [0]
    assert draws.chosen is not None
    assert draws.top_tokens is not None
    assert float(draws.chosen[0]) == pytest.approx(reference.logprobs([1.0, 2.0, 3.0])[0], abs=1e-6)
    assert draws.top_tokens.tolist() == [[2]]

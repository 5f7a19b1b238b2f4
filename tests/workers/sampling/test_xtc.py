from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from pomona.workers.messages import Sampling
from pomona.workers.randomness import Purpose, uniform
from pomona.workers.sampling import reference
from pomona.workers.sampling.draw import distribution
from pomona.workers.sampling.filters import removes_top_choices
from pomona.workers.sampling.law import RowLaw
from tests.workers.sampling.cases import assert_distributed, drawn, one

LOGITS = list(np.log([0.4, 0.3, 0.2, 0.1]))


def left(sampling: Sampling, *, spared: Sequence[int] = (), logits: Sequence[float] = LOGITS) -> list[int]:
    """Tokens that may still be drawn."""
    row = RowLaw(sampling, 0, None, None, spared=tuple(spared))
    return np.flatnonzero(np.array(distribution(mx.array([logits]), [row])[0])).tolist()


def always(threshold: float, **law: float) -> Sampling:
    return Sampling(seed=0, xtc_probability=1.0, xtc_threshold=threshold, **law)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("threshold", "kept"), [(0.0, [3]), (0.09, [3]), (0.15, [2, 3]), (0.25, [1, 2, 3]), (0.35, [0, 1, 2, 3])]
)
def test_of_the_tokens_above_the_threshold_only_the_least_probable_stays(threshold: float, kept: list[int]) -> None:
    assert left(always(threshold)) == kept


def test_where_none_is_above_the_threshold_all_stay() -> None:
    assert left(always(0.5)) == [0, 1, 2, 3]


def test_the_threshold_itself_is_not_above_it_and_equals_stay_together() -> None:
    assert left(always(0.5), logits=[0.0, 0.0]) == [0, 1]
    assert left(always(0.4), logits=[0.0, 0.0]) == [0, 1]


def test_probabilities_are_those_among_what_top_p_and_min_p_have_left() -> None:
    """Of 0.4 and 0.3 alone, 0.3 is three sevenths."""
    assert left(always(0.4, top_p=0.6)) == [1]
    assert left(always(0.4, min_p=0.7)) == [1]
    assert left(always(0.45, top_p=0.6)) == [0, 1]


def test_top_k_counts_what_is_left() -> None:
    assert left(always(0.15, top_k=1)) == [2]


def test_spared_tokens_stay_and_still_count_as_the_least_probable() -> None:
    assert left(always(0.15), spared=[0]) == [0, 2, 3]
    assert left(always(0.15), spared=[2, 1]) == [1, 2, 3]
    assert left(always(0.15), spared=[3]) == [2, 3]


def test_rows_spare_their_own_tokens() -> None:
    spared = [(), (0,), (1, 0), (), (3,)]
    rows = [RowLaw(always(0.15), index, None, None, spared=each) for index, each in enumerate(spared)]
    probabilities = np.array(distribution(mx.array([LOGITS] * 5), rows))
    kept = [np.flatnonzero(each).tolist() for each in probabilities]
    assert kept == [[2, 3], [0, 2, 3], [0, 1, 2, 3], [2, 3], [2, 3]]


def test_the_chance_is_the_positions_own() -> None:
    law = Sampling(seed=6, xtc_probability=0.3, xtc_threshold=0.15)
    rows = [RowLaw(law, position, None, None) for position in range(2000)]
    removed = [removes_top_choices(row) for row in rows]
    assert removed == [uniform(6, position, Purpose.XTC) < 0.3 for position in range(2000)]
    probabilities = np.array(distribution(mx.array([LOGITS] * 2000), rows))
    assert [not each[0] for each in probabilities] == removed
    mixture = 0.7 * np.exp(LOGITS) + 0.3 * reference.distribution(np.array(LOGITS), law, xtc=True)
    assert_distributed(drawn([LOGITS] * 2000, rows), mixture)


def test_the_probability_zero_is_never_and_one_is_always() -> None:
    rows = [RowLaw(Sampling(seed=seed, xtc_probability=0.0), 0, None, None) for seed in range(300)]
    assert not any(removes_top_choices(row) for row in rows)
    assert all(removes_top_choices(row._replace(sampling=always(0.1))) for row in rows)


def test_temperature_zero_knows_no_xtc() -> None:
    assert one(LOGITS, always(0.1, temperature=0.0)) == 0


def test_a_spared_token_that_no_logit_has_spares_none() -> None:
    """A client may name any number as a stop token."""
    assert left(always(0.15), spared=[4, 2**31 - 1]) == [2, 3]
    assert left(always(0.15), spared=[0, 2**31 - 1]) == [0, 2, 3]

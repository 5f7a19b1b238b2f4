import math

import mlx.core as mx
import numpy as np
import pytest

from pomona.workers.messages import Sampling
from pomona.workers.randomness import Purpose, uniform
from pomona.workers.row import FORBIDDEN
from pomona.workers.sampling import reference
from pomona.workers.sampling.adjust import adjust
from pomona.workers.sampling.draw import distribution, draw
from pomona.workers.sampling.law import Adjustment, RowLaw
from pomona.workers.sampling.logprobs import LEAST
from tests.workers.sampling.cases import (
    ROUNDING,
    VOCABULARY,
    Case,
    assert_distributed,
    drawn,
    fields,
    margin,
    one,
    repeated,
    rows_of,
)


def test_every_row_of_a_mixed_batch_draws_what_the_reference_draws() -> None:
    random = np.random.default_rng(1)
    close = 0
    for width in [1, 2, 3, 8, 16, 32, 64] * 8:
        cases = [Case(random) for _ in range(width)]
        tokens = drawn(np.stack([case.logits for case in cases]), [case.row for case in cases])
        for case, token in zip(cases, tokens, strict=True):
            at = case.number(Purpose.SAMPLE)
            assert case.probabilities[token] > 0
            if token != reference.pick(case.probabilities, at):
                assert margin(case.probabilities, at) < ROUNDING
                close += 1
    assert close <= 2


def test_the_probabilities_of_every_row_of_a_mixed_batch_are_the_references() -> None:
    random = np.random.default_rng(8)
    for width in [1, 2, 3, 8, 16, 32] * 8:
        cases = [Case(random) for _ in range(width)]
        logits = mx.array(np.stack([case.logits for case in cases]))
        probabilities = distribution(logits, [case.row for case in cases])
        assert probabilities.dtype == mx.float32
        expected = np.stack([case.probabilities for case in cases])
        assert np.array(probabilities) == pytest.approx(expected, abs=3e-6)
        assert (np.array(probabilities)[expected == 0] == 0).all()


def test_drawing_and_asking_for_probabilities_leave_the_logits_as_they_are() -> None:
    case = Case(np.random.default_rng(9))
    row = case.row._replace(sampling=Sampling(seed=3, top_p=0.5, min_p=0.1, top_k=3, xtc_probability=1.0))
    cold = RowLaw(Sampling(seed=0, temperature=0.0), 0, None, None)
    for rows in ([row], [row, row], [row, cold], [cold, cold]):
        logits = mx.array(np.tile(case.logits, (len(rows), 1)))
        mx.eval(draw(logits, rows).tokens, distribution(logits, rows))
        assert np.array_equal(np.array(logits), np.tile(case.logits, (len(rows), 1)))


def test_a_row_draws_the_same_token_in_any_company() -> None:
    random = np.random.default_rng(2)
    for _ in range(12):
        cases = [Case(random) for _ in range(12)]
        # A neighbour must not decide ties: many logits are equal, as they are in bfloat16.
        logits = np.round(np.stack([case.logits for case in cases]))
        rows = [case.row._replace(logprobs=3) for case in cases]
        together = draw(mx.array(logits), rows)
        for index, row in enumerate(rows):
            alone = draw(mx.array(logits[index : index + 1]), [row])
            assert fields(alone, 0) == fields(together, index)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=0),
        Sampling(seed=0, temperature=0.5),
        Sampling(seed=0, temperature=3.0),
        Sampling(seed=0, top_p=0.8),
        Sampling(seed=0, top_p=0.8, temperature=2.0),
        Sampling(seed=0, top_k=4, temperature=1.5),
        Sampling(seed=0, min_p=0.1),
        Sampling(seed=0, top_p=0.9, min_p=0.05, top_k=6, temperature=0.8),
    ],
    ids=["plain", "cold", "hot", "top-p", "hot top-p", "hot top-k", "min-p", "all"],
)
def test_tokens_are_distributed_by_the_law(sampling: Sampling) -> None:
    logits = np.random.default_rng(3).normal(0, 1.5, 20).astype(np.float32)
    tokens = repeated(logits, sampling, 4000)
    probabilities = reference.distribution(logits.astype(np.float64), sampling)
    assert_distributed(tokens, probabilities)
    assert set(np.flatnonzero(probabilities > 5 / 4000)) <= set(tokens)


def test_positions_of_one_seed_are_distributed_by_the_law_as_well() -> None:
    logits = np.random.default_rng(4).normal(0, 1.5, 20).astype(np.float32)
    rows = [RowLaw(Sampling(seed=9), position, None, None) for position in range(4000)]
    assert_distributed(
        drawn(np.tile(logits, (4000, 1)), rows), reference.distribution(logits.astype(float), Sampling(seed=9))
    )


def test_a_fair_coin_falls_to_the_side_that_the_keyed_number_says() -> None:
    for position in range(50):
        side = int(uniform(11, position, Purpose.SAMPLE) >= 0.5)
        assert one([0.0, 0.0], Sampling(seed=11), position=position) == side


def test_temperature_zero_takes_the_lowest_of_the_highest() -> None:
    assert one([1.0, 3.0, 3.0, 2.0, 3.0], Sampling(seed=0, temperature=0.0)) == 1
    assert one([0.0] * 5, Sampling(seed=0, temperature=0.0)) == 0


def test_temperature_zero_follows_penalties_and_bias() -> None:
    row = RowLaw(Sampling(seed=0, temperature=0.0), 0, Adjustment([1, 0], [2.0, 1.0], [0.0, 0.6]), None)
    assert drawn([[1.0, 3.0, 1.5]], [row]) == [0]


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-38, 1e-46, 5e-324])
def test_temperatures_near_zero_approach_the_greedy_token(temperature: float) -> None:
    assert set(repeated([1.0, 2.0, 2.5, -4.0], Sampling(seed=0, temperature=temperature), 20)) == {2}


def test_top_p_zero_keeps_the_most_probable_token() -> None:
    assert set(repeated([1.0, 2.5, 2.4], Sampling(seed=0, top_p=0.0, temperature=5.0), 50)) == {1}


@pytest.mark.parametrize(("top_p", "kept"), [(0.39, {0}), (0.41, {0, 1}), (0.69, {0, 1}), (0.71, {0, 1, 2})])
def test_top_p_takes_tokens_until_their_mass_is_reached(top_p: float, kept: set[int]) -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert set(repeated(list(logits), Sampling(seed=0, top_p=top_p), 300)) == kept


def test_a_token_behind_a_mass_that_is_just_reached_is_left_out() -> None:
    """In float32 the first token has all the mass, and `top_p` is 1."""
    rows = rows_of([Sampling(seed=0, top_p=1 - 1e-9, temperature=5.0)])
    assert distribution(mx.array([[0.0, -106.0]]), rows).tolist() == [[1.0, 0.0]]


def test_top_p_looks_at_the_untempered_distribution() -> None:
    logits = np.log([0.9, 0.06, 0.04])
    assert set(repeated(list(logits), Sampling(seed=0, top_p=0.8, temperature=5.0), 100)) == {0}


@pytest.mark.parametrize(("min_p", "kept"), [(1.0, {0}), (0.76, {0}), (0.74, {0, 1}), (0.24, {0, 1, 2, 3})])
def test_min_p_is_a_share_of_the_highest_probability(min_p: float, kept: set[int]) -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert set(repeated(list(logits), Sampling(seed=0, min_p=min_p), 300)) == kept


def test_top_k_one_is_greedy_also_among_equals() -> None:
    assert set(repeated([1.0, 2.0, 2.0, 2.0], Sampling(seed=0, top_k=1, temperature=3.0), 50)) == {1}


def test_top_k_keeps_exactly_k_and_of_equals_the_lowest_ids() -> None:
    logits = [1.0, 2.0, 3.0, 2.0, 2.0, 0.0]
    assert set(repeated(logits, Sampling(seed=0, top_k=3, temperature=3.0), 300)) == {1, 2, 3}
    assert set(repeated([0.0] * 6, Sampling(seed=0, top_k=2), 100)) == {0, 1}


def test_top_k_of_the_whole_vocabulary_or_more_is_off() -> None:
    for top_k in (4, 5, 10**9):
        assert set(repeated([0.0] * 4, Sampling(seed=0, top_k=top_k), 200)) == {0, 1, 2, 3}


def test_filters_apply_one_after_the_other() -> None:
    """Top-k counts among what top-p and min-p have left, and never brings a token back."""
    logits = list(np.log([0.5, 0.3, 0.15, 0.05]))
    assert set(repeated(logits, Sampling(seed=0, top_p=0.7, top_k=3, temperature=4.0), 300)) == {0, 1}
    assert set(repeated(logits, Sampling(seed=0, min_p=0.5, top_k=3, temperature=4.0), 300)) == {0, 1}


@pytest.mark.parametrize("bias", [-100.0, FORBIDDEN, -1e38])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 5.0])
def test_a_huge_negative_bias_bars_a_token(bias: float, temperature: float) -> None:
    rows = [
        RowLaw(Sampling(seed=seed, temperature=temperature), 0, Adjustment([1], [1.0], [bias]), None)
        for seed in range(50)
    ]
    assert set(drawn([[0.0, 10.0, 0.5]] * 50, rows)) <= {0, 2}


@pytest.mark.parametrize("bias", [100.0, 1e30, 1e38])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_a_huge_bias_forces_a_token(bias: float, temperature: float) -> None:
    rows = [
        RowLaw(Sampling(seed=seed, temperature=temperature), 0, Adjustment([1], [1.0], [bias]), None)
        for seed in range(50)
    ]
    assert set(drawn([[0.0, -10.0, 0.5]] * 50, rows)) == {1}


def test_adjustments_of_different_length_stay_on_their_own_rows() -> None:
    greedy = Sampling(seed=0, temperature=0.0)
    rows = [
        RowLaw(greedy, 0, Adjustment([3], [1.0], [9.0]), None),
        RowLaw(greedy, 0, None, None),
        RowLaw(greedy, 0, Adjustment([], [], []), None),
        RowLaw(greedy, 0, Adjustment([0, 1, 2], [1.0, 2.0, 1.0], [-5.0, 0.0, 1.5]), None),
    ]
    assert drawn([[4.0, 3.0, 2.0, 1.0]] * 4, rows) == [3, 0, 0, 2]
    assert drawn([[4.0, 3.0, 2.0, 1.0]] * 2, [rows[0], rows[3]]) == [3, 2]


@pytest.mark.parametrize("absent", [3, 2**31 - 1])
def test_an_adjustment_of_a_token_that_no_logit_has_adjusts_nothing(absent: int) -> None:
    """A client may name any number as a stop token, which must not come before `min_tokens`."""
    rows = [
        RowLaw(Sampling(seed=0), 0, Adjustment([1, absent], [2.0, 3.0], [0.5, FORBIDDEN]), None),
        RowLaw(Sampling(seed=0), 0, Adjustment([absent], [1.0], [FORBIDDEN]), None),
        RowLaw(Sampling(seed=0), 0, None, None),
    ]
    raw = mx.array([[0.0, 2.0, 1.0]] * 3)
    assert adjust(raw, rows).tolist() == [[0.0, 1.5, 1.0], [0.0, 2.0, 1.0], [0.0, 2.0, 1.0]]
    assert draw(raw[1:], rows[1:]).finite.tolist() == [True, True]


@pytest.mark.parametrize(("logit", "expected"), [(3.0, 1.5), (-3.0, -6.0), (0.0, 0.0)])
def test_a_repetition_penalty_divides_what_is_positive_and_multiplies_what_is_not(
    logit: float, expected: float
) -> None:
    for rival, winner in ((expected - 0.01, 0), (expected + 0.01, 1)):
        row = RowLaw(Sampling(seed=0, temperature=0.0), 0, Adjustment([0], [2.0], [0.0]), None)
        assert drawn([[logit, rival]], [row]) == [winner]


def seed_with_number(low: float, high: float) -> int:
    return next(seed for seed in range(10**6) if low <= uniform(seed, 0, Purpose.SAMPLE) < high)


NEARLY_ONE = 49337423
"""A seed whose first number is 1.0 in float32."""


def test_numbers_at_both_ends_never_draw_a_token_of_probability_zero() -> None:
    logits = [FORBIDDEN, 0.0, FORBIDDEN, 0.0, FORBIDDEN, FORBIDDEN]
    assert np.float32(uniform(NEARLY_ONE, 0, Purpose.SAMPLE)) == 1
    assert one(logits, Sampling(seed=NEARLY_ONE)) == 3
    assert one(logits, Sampling(seed=seed_with_number(0, 2e-5))) == 1


def test_a_number_on_a_border_belongs_to_the_token_behind_it() -> None:
    """Equal powers of two add up exactly, so that float32 numbers meet the borders."""
    vocabulary = 1 << 14
    numbers = {seed: float(np.float32(uniform(seed, 0, Purpose.SAMPLE))) for seed in range(8000)}
    seeds = [seed for seed, value in numbers.items() if (value * vocabulary).is_integer()]
    assert len(seeds) > 2
    tokens = drawn(
        np.zeros((len(seeds), vocabulary), dtype=np.float32), rows_of([Sampling(seed=seed) for seed in seeds])
    )
    assert tokens == [int(numbers[seed] * vocabulary) for seed in seeds]


def test_a_token_is_drawn_from_half_precision_logits_as_from_their_float32() -> None:
    logits = np.random.default_rng(5).normal(0, 3, (8, 30)).astype(np.float32)
    rows = rows_of([Sampling(seed=seed, top_p=0.9) for seed in range(8)])
    half = mx.array(logits).astype(mx.bfloat16)
    assert draw(half, rows).tokens.tolist() == draw(half.astype(mx.float32), rows).tokens.tolist()


def test_logprobs_are_of_the_raw_distribution_sorted_from_the_top() -> None:
    random = np.random.default_rng(7)
    logits = random.normal(0, 3, (3, VOCABULARY)).astype(np.float32)
    harsh = Sampling(seed=1, temperature=0.2, top_k=2, logit_bias={4: 100.0})
    rows = [RowLaw(harsh, 0, Adjustment([4], [1.0], [100.0]), wanted) for wanted in (5, None, 0)]
    draws = draw(mx.array(logits), rows)
    assert draws.chosen is not None
    assert draws.top_tokens is not None
    assert draws.top_logprobs is not None
    for index in range(3):
        raw = reference.logprobs(logits[index])
        order = np.argsort(-raw)[:5]
        assert draws.top_tokens[index].tolist() == order.tolist()
        assert np.array(draws.top_logprobs[index]) == pytest.approx(raw[order], abs=1e-5)
        assert float(draws.chosen[index]) == pytest.approx(raw[4], abs=1e-5)


def test_equal_logprobs_are_listed_by_id_and_no_more_than_there_are() -> None:
    draws = draw(mx.array([[1.0, 2.0, 1.0, 2.0, 1.0]]), [RowLaw(Sampling(seed=0), 0, None, 3)])
    assert draws.top_tokens is not None
    assert draws.top_tokens.tolist() == [[1, 3, 0]]
    all_of_them = draw(mx.array([[1.0, 2.0, 1.0]]), [RowLaw(Sampling(seed=0), 0, None, 20)])
    assert all_of_them.top_tokens is not None
    assert all_of_them.top_tokens.tolist() == [[1, 0, 2]]


def test_no_logprobs_where_no_row_asks_and_only_the_chosen_where_none_wants_others() -> None:
    logits = mx.array([[1.0, 2.0]])
    silent = draw(logits, [RowLaw(Sampling(seed=0), 0, None, None)])
    assert (silent.chosen, silent.top_tokens, silent.top_logprobs) == (None, None, None)
    chosen = draw(logits, [RowLaw(Sampling(seed=0), 0, None, 0)])
    assert chosen.chosen is not None
    assert (chosen.top_tokens, chosen.top_logprobs) == (None, None)


def test_a_logprob_of_an_impossible_token_is_a_number_and_the_leaders_still_come_by_id() -> None:
    draws = draw(mx.array([[-math.inf, 1.0, -math.inf, -math.inf]]), [RowLaw(Sampling(seed=0), 0, None, 3)])
    assert draws.top_tokens is not None
    assert draws.top_logprobs is not None
    assert draws.top_tokens.tolist() == [[1, 0, 2]]
    assert draws.top_logprobs.tolist() == [[0.0, LEAST, LEAST]]

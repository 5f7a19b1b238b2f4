import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from pomona.runtime.wire import replace
from pomona.workers.messages import Sampling
from pomona.workers.randomness import Purpose, uniform
from pomona.workers.row import FORBIDDEN
from pomona.workers.sampling import reference
from pomona.workers.sampling.draw import draw
from pomona.workers.sampling.draws import Draws
from pomona.workers.sampling.law import Adjustment, RowLaw

VOCABULARY = 50
ROUNDING = 2e-6
"""float32 sums may decide a number this close to a border either way."""

Logits = npt.NDArray[np.float32]


def margin(probabilities: reference.Vector, at: float) -> float:
    """How far `at` lies from the nearest border between two tokens; below rounding both are right."""
    return float(np.abs(np.cumsum(probabilities) - at).min())


def rows_of(laws: Sequence[Sampling], *, position: int = 0) -> list[RowLaw]:
    return [RowLaw(each, position, None, None) for each in laws]


def drawn(logits: Logits | Sequence[Sequence[float]], rows: Sequence[RowLaw]) -> list[int]:
    tokens = draw(mx.array(np.array(logits, dtype=np.float32)), rows).tokens
    assert tokens.dtype == mx.int32
    return [int(token) for token in tokens]


def one(logits: Sequence[float], sampling: Sampling, *, position: int = 0) -> int:
    return drawn([logits], [RowLaw(sampling, position, None, None)])[0]


def repeated(logits: Sequence[float] | Logits, sampling: Sampling, draws: int) -> list[int]:
    """Tokens of one distribution under `draws` seeds."""
    wide = np.tile(np.array(logits, dtype=np.float32), (draws, 1))
    return drawn(wide, rows_of([replace(sampling, seed=seed) for seed in range(draws)]))


def adjustment(
    sampling: Sampling, prompt: Sequence[int], output: Sequence[int], forbidden: Sequence[int]
) -> Adjustment:
    """As a row states it."""
    tokens = sorted({*prompt, *output, *sampling.logit_bias, *forbidden})
    seen = {*prompt, *output}
    return Adjustment(
        tokens,
        [sampling.repetition_penalty if token in seen else 1.0 for token in tokens],
        [
            sampling.logit_bias.get(token, 0.0)
            - sampling.presence_penalty * (token in output)
            - sampling.frequency_penalty * output.count(token)
            + FORBIDDEN * (token in forbidden)
            for token in tokens
        ],
    )


def any_law(random: np.random.Generator) -> Sampling:
    def some(*values: float) -> float:
        return float(random.choice(values))

    return Sampling(
        seed=int(random.integers(2**63)),
        temperature=some(0.0, 0.2, 0.7, 1.0, 1.0, 2.5),
        top_p=some(1.0, 1.0, 0.95, 0.5, 0.1, 0.0),
        top_k=int(some(0, 0, 1, 5, 20, 49, 50, 1000)),
        min_p=some(0.0, 0.0, 0.02, 0.3, 1.0),
        repetition_penalty=some(1.0, 1.0, 1.3, 0.8),
        presence_penalty=some(0.0, 0.6, -0.5),
        frequency_penalty=some(0.0, 0.4, -0.3),
        logit_bias={int(token): float(random.normal(0, 4)) for token in random.integers(0, VOCABULARY, 3)},
    )


class Case:
    """A row with all that decides its token."""

    def __init__(self, random: np.random.Generator) -> None:
        self.sampling = any_law(random)
        self.position = int(random.integers(1000))
        self.logits = random.normal(0, 3, VOCABULARY).astype(np.float32)
        prompt = [int(token) for token in random.integers(0, VOCABULARY, 6)]
        output = [int(token) for token in random.integers(0, VOCABULARY, int(random.integers(0, 9)))]
        forbidden = [int(token) for token in random.integers(0, VOCABULARY, int(random.integers(0, 3)))]
        plain = bool(random.integers(2))
        self.row = RowLaw(
            self.sampling,
            self.position,
            None if plain else adjustment(self.sampling, prompt, output, forbidden),
            None,
        )
        exact = reference.adjusted(self.logits, self.sampling, prompt, output, forbidden)
        self.exact = self.logits.astype(np.float64) if plain else exact
        self.probabilities = reference.distribution(self.exact, self.sampling)


def test_every_row_of_a_mixed_batch_draws_what_the_reference_draws() -> None:
    random = np.random.default_rng(1)
    close = 0
    for width in [1, 2, 3, 8, 16, 32, 64] * 8:
        cases = [Case(random) for _ in range(width)]
        tokens = drawn(np.stack([case.logits for case in cases]), [case.row for case in cases])
        for case, token in zip(cases, tokens, strict=True):
            at = uniform(case.sampling.seed, case.position, Purpose.SAMPLE)
            assert case.probabilities[token] > 0
            if token != reference.pick(case.probabilities, at):
                assert margin(case.probabilities, at) < ROUNDING
                close += 1
    assert close <= 2


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


def fields(draws: Draws, index: int) -> tuple[object, ...]:
    return tuple(array[index].tolist() for array in draws if array is not None)


QUANTILE = 4.0
"""Standard deviations; the seeds are fixed, so that a pass stays one."""


def assert_distributed(tokens: Sequence[int], probabilities: reference.Vector) -> None:
    """Chi-square with the cube-root approximation of its quantile (Wilson and Hilferty 1931)."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    assert not counts[probabilities == 0].any()
    expected = len(tokens) * probabilities
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = max(len(wanted) - 1, 1)
    limit = freedom * (1 - 2 / (9 * freedom) + QUANTILE * math.sqrt(2 / (9 * freedom))) ** 3
    assert float(((observed - wanted) ** 2 / wanted).sum()) < limit


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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_flagged_and_leaves_the_others_alone(bad: float) -> None:
    random = np.random.default_rng(6)
    cases = [Case(random) for _ in range(6)]
    logits = np.stack([case.logits for case in cases])
    rows = [case.row._replace(logprobs=2) for case in cases]
    clean = draw(mx.array(logits), rows)
    assert clean.finite.tolist() == [True] * 6
    logits[2, 17] = bad
    poisoned = draw(mx.array(logits), rows)
    assert poisoned.finite.tolist() == [True, True, False, True, True, True]
    for index in (0, 1, 3, 4, 5):
        assert fields(poisoned, index) == fields(clean, index)
    assert 0 <= int(poisoned.tokens[2]) < VOCABULARY  # goes through the next forward


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

"""Sampled drafts verified for whole batches, against the pure statement in `speculation.exact`."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from pomona.runtime.wire import replace
from pomona.workers.messages import Sampling
from pomona.workers.randomness import Purpose, uniform
from pomona.workers.sampling import reference
from pomona.workers.sampling.draw import draw
from pomona.workers.sampling.invert import sample
from pomona.workers.sampling.law import Drafted, RowLaw
from pomona.workers.sampling.reference import Vector
from pomona.workers.sampling.verify import acceptances, residuals, verify
from pomona.workers.speculation import exact
from tests.workers.sampling.cases import ROUNDING, VOCABULARY, Case, assert_distributed, fields, margin

Floats = npt.NDArray[np.float32]


def any_origin(random: np.random.Generator, p: Vector) -> Floats:
    """What a draft may be drawn from: near p, far from it, with less support, with more, even, or nearly one token."""
    noise = random.dirichlet(np.full(len(p), 0.3))
    few = np.where(random.random(len(p)) < 0.2, noise + 1e-3, 0.0)
    kinds = [p, 0.9 * p + 0.1 * noise, noise, few + 1e-9 * (few.sum() == 0), np.ones(len(p)), noise**4]
    q = kinds[int(random.integers(len(kinds)))].astype(np.float32)
    return np.asarray(q / q.sum(), dtype=np.float32)


class Verification(NamedTuple):
    case: Case
    q: Floats
    draft: int

    @property
    def p(self) -> Vector:
        return self.case.probabilities

    def expected(self) -> int:
        verified = exact.verify_one_token(
            self.p, self.q.astype(np.float64), self.draft, self.case.row.position, exact.Keyed(self.case.sampling.seed)
        )
        return verified.token

    def is_close(self) -> bool:
        """A number lies so near a border that float32 may see it on either side."""
        q = self.q.astype(np.float64)
        coin = abs(self.case.number(Purpose.COIN) - exact.acceptance_probability(self.p, q, self.draft))
        residual = np.maximum(self.p - q, 0)
        blur = ROUNDING / max(residual.sum(), ROUNDING)
        return coin < 1e-5 or margin(exact.residual_distribution(self.p, q), self.case.number(Purpose.RESIDUAL)) < blur


def any_verification(random: np.random.Generator) -> Verification:
    case = Case(random)
    while case.sampling.temperature == 0:
        case = Case(random)
    q = any_origin(random, case.probabilities)
    (draft,) = sample(mx.array(q[None]), [case.number(Purpose.DRAFT)]).tolist()  # type: ignore[misc]
    return Verification(case, q, int(draft))  # type: ignore[call-overload]


def test_a_mixed_batch_verifies_what_the_pure_functions_verify() -> None:
    """Rows with drafts beside rows without, greedy ones too; the distributions come in any order."""
    random = np.random.default_rng(1)
    close = accepted = tested = 0
    for width in [1, 2, 3, 8, 16, 32] * 10:
        plain = [Case(random) for _ in range(int(random.integers(0, 3)))]
        drafted = [any_verification(random) for _ in range(width)]
        order = random.permutation(width)
        rows = [case.row for case in plain]
        rows += [each.case.row._replace(drafted=Drafted(each.draft, int(order[i]))) for i, each in enumerate(drafted)]
        places = random.permutation(len(rows))
        logits = np.stack([case.logits for case in (*plain, *(each.case for each in drafted))])[places]
        origins = np.empty((width, VOCABULARY), dtype=np.float32)
        origins[order] = np.stack([each.q for each in drafted])
        draws = draw(mx.array(logits), [rows[place] for place in places], mx.array(origins))
        assert draws.finite.tolist() == [True] * len(rows)
        assert draws.drafts is not None
        assert draws.drafts.tolist() == [True] * len(rows)
        tokens = np.empty(len(rows), dtype=int)
        tokens[places] = draws.tokens.tolist()
        for case, token in zip(plain, tokens[: len(plain)], strict=True):
            at = case.number(Purpose.SAMPLE)
            assert token == reference.pick(case.probabilities, at) or margin(case.probabilities, at) < ROUNDING
        for each, token in zip(drafted, tokens[len(plain) :], strict=True):
            assert each.p[token] > 0
            tested, accepted = tested + 1, accepted + (token == each.draft)
            if token != each.expected():
                assert each.is_close()
                close += 1
    assert close <= 4
    assert 0.2 < accepted / tested < 0.9


def test_acceptances_and_residuals_are_the_pure_ones() -> None:
    random = np.random.default_rng(2)
    drafted = [any_verification(random) for _ in range(200)]
    p = np.stack([each.p for each in drafted]).astype(np.float32)
    q = np.stack([each.q for each in drafted])
    tokens = mx.array([each.draft for each in drafted])
    acceptance, possible = acceptances(mx.array(p), mx.array(q), tokens)
    assert possible.tolist() == [True] * 200
    left = np.array(residuals(mx.array(p), mx.array(q)), dtype=np.float64)
    for index, each in enumerate(drafted):
        own, origin = p[index].astype(np.float64), each.q.astype(np.float64)
        assert float(acceptance[index]) == pytest.approx(
            exact.acceptance_probability(own, origin, each.draft), rel=1e-6
        )
        above = np.maximum(own - origin, 0)
        assert left[index] == pytest.approx(above if above.any() else own, abs=1e-7)
        if above.sum() > 1e-3:
            assert left[index] / left[index].sum() == pytest.approx(exact.residual_distribution(own, origin), abs=1e-4)


@pytest.mark.parametrize("kind", ["near", "far", "less support", "disjoint", "even"])
@pytest.mark.parametrize(
    "sampling", [Sampling(seed=0), Sampling(seed=0, top_p=0.8, temperature=1.4)], ids=["plain", "filtered"]
)
def test_verified_tokens_are_distributed_by_the_rows_own_law(kind: str, sampling: Sampling) -> None:
    random = np.random.default_rng(3)
    logits = random.normal(0, 1.5, 12).astype(np.float32)
    p = reference.distribution(logits.astype(np.float64), sampling)
    q = {
        "near": 0.8 * p + 0.2 / 12,
        "far": random.dirichlet(np.ones(12)),
        "less support": np.where(np.arange(12) % 2 == 0, p + 1e-3, 0),
        "disjoint": np.where(p == 0, 1.0, 1e-12) if (p == 0).any() else np.where(p == p.min(), 1.0, 0.0),
        "even": np.ones(12),
    }[kind]
    origins = np.tile((q / q.sum()).astype(np.float32), (4000, 1))
    laws = [replace(sampling, seed=seed) for seed in range(4000)]
    numbers = [uniform(law.seed, 5, Purpose.DRAFT) for law in laws]
    drafts: list[int] = sample(mx.array(origins), numbers).tolist()  # type: ignore[assignment]
    rows = [RowLaw(law, 5, None, None, drafted=Drafted(drafts[i], i)) for i, law in enumerate(laws)]
    draws = draw(mx.array(np.tile(logits, (4000, 1))), rows, mx.array(origins))
    assert_distributed([int(token) for token in draws.tokens], p)


def verified(logits: Sequence[float], q: Sequence[float], draft: int, seeds: Sequence[int]) -> list[int]:
    """Tokens under several seeds, at position 0."""
    rows = [RowLaw(Sampling(seed=seed), 0, None, None, drafted=Drafted(draft, 0)) for seed in seeds]
    tokens = draw(mx.array([list(logits)] * len(seeds)), rows, mx.array([list(q)])).tokens
    return [int(token) for token in tokens]


def test_a_draft_is_kept_exactly_where_its_coin_is_below_the_acceptance() -> None:
    coins = [uniform(seed, 0, Purpose.COIN) for seed in range(300)]
    tokens = verified(np.log([0.3, 0.7]).tolist(), [0.75, 0.25], 0, range(300))
    assert tokens == [0 if coin < 0.4 else 1 for coin in coins]
    assert min(abs(coin - 0.4) for coin in coins) > 1e-6


NEARLY_ONE = 86699285
"""A seed whose first coin is 1.0 in float32."""


def test_a_draft_as_probable_as_its_law_says_is_always_kept() -> None:
    assert np.float32(uniform(NEARLY_ONE, 0, Purpose.COIN)) == 1
    assert verified([0.0, 0.0], [0.5, 0.5], 1, [NEARLY_ONE, *range(200)]) == [1] * 201


def test_an_impossible_draft_is_never_kept_even_by_the_lowest_coin() -> None:
    lowest = min(range(5000), key=lambda seed: uniform(seed, 0, Purpose.COIN))
    assert verified([0.0, -math.inf], [0.0, 1.0], 1, [lowest, *range(200)]) == [0] * 201


def test_a_coin_that_equals_the_acceptance_does_not_keep_the_draft() -> None:
    """Coins have 24 bits, so that float32 holds each of them and an acceptance that is the same."""
    for seed in range(20):
        coin = math.floor(uniform(seed, 0, Purpose.COIN) * 2**24) / 2**24
        row = RowLaw(Sampling(seed=seed), 0, None, None, drafted=Drafted(0, 0))
        kept = []
        for own in (coin, coin + 2**-24):
            tokens, _ = verify(mx.array([[own, 1 - own]]), [row], mx.array([[1.0, 0.0]]))
            kept.append(tokens.tolist() == [0])
        assert kept == [False, True]


def test_the_residual_knows_its_own_number() -> None:
    """p has above q two tokens of the same amount, and the draft is never kept."""
    tokens = verified([-math.inf, 0.0, 0.0], [1.0, 0.0, 0.0], 0, range(200))
    assert tokens == [1 + int(uniform(seed, 0, Purpose.RESIDUAL) >= 0.5) for seed in range(200)]


def test_without_a_residual_the_law_itself_is_drawn_from() -> None:
    p, q = mx.array([[0.5, 0.25, 0.25]]), mx.array([[0.5, 0.25, 0.25 + 2**-20]])
    assert residuals(p, q).tolist() == p.tolist()


def test_at_temperature_zero_the_token_is_the_greedy_one_whatever_was_drafted() -> None:
    law = Sampling(seed=0, temperature=0.0)
    rows = [RowLaw(law, 0, None, None, drafted=Drafted(draft, 0)) for draft in range(3)]
    draws = draw(mx.array([[0.0, 2.0, 1.0]] * 3), rows, mx.array([[0.2, 0.3, 0.5]]))
    assert draws.tokens.tolist() == [1, 1, 1]
    assert draws.drafts is None


@pytest.mark.parametrize(
    "q", [[0.5, 0.5, 0.0], [0.5, math.nan, 0.5], [math.nan] * 3, [0.5, 0.5, math.nan], [0.5, math.inf, 0.5]]
)
def test_a_draft_that_cannot_come_from_its_distribution_is_a_fault_of_its_row_alone(q: list[float]) -> None:
    rows = [
        RowLaw(Sampling(seed=0, temperature=0.0), 0, None, None),
        RowLaw(Sampling(seed=0), 0, None, None, drafted=Drafted(2, 1)),
        RowLaw(Sampling(seed=0), 0, None, None, drafted=Drafted(2, 0)),
        RowLaw(Sampling(seed=0), 0, None, None),
    ]
    draws = draw(mx.zeros((4, 3)), rows, mx.array([[0.2, 0.3, 0.5], q]))
    assert draws.finite.tolist() == [True, False, True, True]
    assert draws.fault(1).draft
    assert not draws.fault(2).draft
    assert str(draws.fault(1)) == "a draft that its own distribution cannot have given"
    assert 0 <= int(draws.tokens[1]) < 3


def test_a_row_verifies_the_same_token_in_any_company() -> None:
    random = np.random.default_rng(4)
    for _ in range(10):
        drafted = [any_verification(random) for _ in range(8)]
        cases = [each.case for each in drafted] + [Case(random) for _ in range(4)]
        logits = np.stack([case.logits for case in cases])
        rows = [each.case.row._replace(drafted=Drafted(each.draft, i)) for i, each in enumerate(drafted)]
        rows += [case.row for case in cases[8:]]
        together = draw(mx.array(logits), rows, mx.array(np.stack([each.q for each in drafted])))
        for index, row in enumerate(rows):
            origin = None if index >= 8 else mx.array(drafted[index].q[None])
            own = row if row.drafted is None else row._replace(drafted=Drafted(row.drafted.token, 0))
            alone = draw(mx.array(logits[index : index + 1]), [own], origin)
            assert fields(alone._replace(drafts=None), 0) == fields(together._replace(drafts=None), index)


def test_drafts_without_fitting_distributions_are_an_error_of_the_caller() -> None:
    row = RowLaw(Sampling(seed=0), 0, None, None, drafted=Drafted(0, 0))
    for distributions in (None, mx.array([[0.5, 0.5]])):
        with pytest.raises(ValueError, match="need distributions over the 3 ids"):
            draw(mx.zeros((1, 3)), [row], distributions)

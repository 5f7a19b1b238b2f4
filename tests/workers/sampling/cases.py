"""Rows with everything that decides their tokens, what the reference says of them, and tests of whole distributions."""

import math
from collections.abc import Iterable, Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from pomona.runtime.wire import replace
from pomona.workers.messages import Sampling
from pomona.workers.randomness import Purpose, uniform
from pomona.workers.row import FORBIDDEN
from pomona.workers.sampling import reference
from pomona.workers.sampling.draw import draw
from pomona.workers.sampling.draws import Draws
from pomona.workers.sampling.law import Adjustment, RowLaw
from pomona.workers.sampling.reference import Vector

VOCABULARY = 50
ROUNDING = 2e-6
"""float32 sums may decide a number this close to a border either way."""

Logits = npt.NDArray[np.float32]
Mask = npt.NDArray[np.uint32]


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


def fields(draws: Draws, index: int) -> tuple[object, ...]:
    """All that a row has of a step."""
    return tuple(array[index].tolist() for array in draws if array is not None)


def mask_of(allowed: Iterable[int], words: int) -> Mask:
    mask = np.zeros(words, dtype=np.uint32)
    for token in allowed:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


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
        xtc_probability=some(0.0, 0.0, 0.5, 1.0),
        xtc_threshold=some(0.0, 0.05, 0.1, 0.5),
        repetition_penalty=some(1.0, 1.0, 1.3, 0.8),
        presence_penalty=some(0.0, 0.6, -0.5),
        frequency_penalty=some(0.0, 0.4, -0.3),
        logit_bias={int(token): float(random.normal(0, 4)) for token in random.integers(0, VOCABULARY, 3)},
    )


class Case:
    """A row, its logits, and the probabilities that the reference gives its token."""

    def __init__(self, random: np.random.Generator) -> None:
        def ids(most: int) -> list[int]:
            return [int(token) for token in random.integers(0, VOCABULARY, int(random.integers(0, most + 1)))]

        self.sampling = any_law(random)
        self.logits = random.normal(0, 3, VOCABULARY).astype(np.float32)
        self.logits[ids(2)] = -math.inf
        prompt, output, spared = ids(6), ids(8), tuple(ids(3))
        best = int(np.argmax(self.logits))
        allowed, forbidden = [*ids(60), best], [token for token in ids(2) if token != best]
        plain, free = bool(random.integers(2)), bool(random.integers(2))
        self.row = RowLaw(
            self.sampling,
            position=int(random.integers(1000)),
            adjustment=None if plain else adjustment(self.sampling, prompt, output, forbidden),
            logprobs=None,
            mask=None if free else mask_of(allowed, 2),
            spared=spared,
        )
        exact = self.logits if plain else reference.adjusted(self.logits, self.sampling, prompt, output, forbidden)
        self.exact = exact.astype(np.float64) if self.row.mask is None else reference.masked(exact, self.row.mask)
        chance = uniform(self.sampling.seed, self.row.position, Purpose.XTC)
        self.probabilities = reference.distribution(
            self.exact, self.sampling, xtc=chance < self.sampling.xtc_probability, spared=spared
        )

    def number(self, purpose: Purpose) -> float:
        return uniform(self.sampling.seed, self.row.position, purpose)


def margin(probabilities: Vector, at: float) -> float:
    """How far `at` lies from the nearest border between two tokens; below rounding both are right."""
    return float(np.abs(np.cumsum(probabilities) - at).min())


QUANTILE = 4.0
"""Standard deviations; the seeds are fixed, so that a pass stays one."""


def assert_distributed(tokens: Sequence[int], probabilities: Vector) -> None:
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

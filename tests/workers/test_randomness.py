import hashlib
import math
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pomona.workers.randomness import Purpose, uniform

SEEDS = st.integers(0, 2**64 - 1)


def test_the_numbers_never_change() -> None:
    """A request is resumed by another process, perhaps of another version: the key is part of the contract."""
    key = (7).to_bytes(8, "little") + (3).to_bytes(8, "little") + (0).to_bytes(4, "little")
    bits = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") // 2**11
    assert uniform(7, 3, Purpose.SAMPLE) == bits / 2**53
    assert uniform(7, 3, Purpose.SAMPLE) == pytest.approx(0.652767963778309)
    assert [purpose.name for purpose in sorted(Purpose)] == ["SAMPLE", "DRAFT", "COIN", "RESIDUAL", "XTC"]
    assert sorted(Purpose) == [0, 1, 2, 3, 4]


@settings(deadline=None)
@given(SEEDS, st.integers(0, 2**40))
def test_a_number_depends_on_its_key_alone_and_lies_below_one(seed: int, position: int) -> None:
    number = uniform(seed, position, Purpose.SAMPLE)
    assert 0 <= number < 1
    uniform(seed ^ 1, position, Purpose.SAMPLE)
    assert uniform(seed, position, Purpose.SAMPLE) == number


def evenness(numbers: Sequence[float]) -> float:
    """Chi-square over 64 bins, in standard deviations of its normal approximation."""
    expected = len(numbers) / 64
    counts = [0] * 64
    for number in numbers:
        counts[int(64 * number)] += 1
    statistic = sum((count - expected) ** 2 / expected for count in counts)
    return (statistic - 63) / math.sqrt(2 * 63)


def test_positions_of_one_seed_and_seeds_of_one_position_are_even() -> None:
    assert abs(evenness([uniform(5, position, Purpose.SAMPLE) for position in range(6400)])) < 4
    assert abs(evenness([uniform(seed, 5, Purpose.SAMPLE) for seed in range(6400)])) < 4


def test_neighbours_are_independent() -> None:
    """The fractional sum of two independent even numbers is even; that of two related ones is not."""
    for step in ((0, 1), (1, 0)):
        sums = [
            (uniform(seed, 3, Purpose.SAMPLE) + uniform(seed + step[0], 3 + step[1], Purpose.SAMPLE)) % 1
            for seed in range(6400)
        ]
        assert abs(evenness(sums)) < 4


def test_purposes_of_one_position_are_independent() -> None:
    for one, other in combinations(Purpose, 2):
        sums = [(uniform(5, position, one) + uniform(5, position, other)) % 1 for position in range(6400)]
        assert abs(evenness(sums)) < 4

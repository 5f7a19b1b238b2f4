import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.cli.bench.mixture import Mixture, Share
from pomona.cli.bench.problem import BenchError

MIXTURES = st.lists(st.builds(Share, st.integers(1, 5000), st.integers(1, 100)), min_size=1, max_size=5).map(
    lambda shares: Mixture(tuple(shares))
)


def test_a_number_is_always_itself() -> None:
    mixture = Mixture.parse("40", option="--prompt-words")
    assert mixture == Mixture.of(40)
    assert {mixture.draw(random.Random(seed)) for seed in range(9)} == {40}


def test_sizes_are_drawn_by_their_weights() -> None:
    mixture = Mixture.parse("10:3, 200:1", option="--x")
    source = random.Random(0)
    drawn = [mixture.draw(source) for _ in range(4000)]
    assert drawn.count(10) / 4000 == pytest.approx(0.75, abs=0.03)
    assert set(drawn) == {10, 200}
    assert mixture.mean == 57.5


@given(MIXTURES, st.integers())
def test_what_is_drawn_is_one_of_the_sizes(mixture: Mixture, seed: int) -> None:
    assert mixture.draw(random.Random(seed)) in {share.size for share in mixture.shares}


@given(MIXTURES)
def test_a_mixture_is_written_as_it_is_read(mixture: Mixture) -> None:
    read = Mixture.parse(str(mixture), option="--x")
    assert [share.size for share in read.shares] == [share.size for share in mixture.shares]
    assert read.mean == pytest.approx(mixture.mean)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not a size"),
        ("many", "'many' is not a size"),
        ("40:0.7,", "'' is not a size"),
        ("40:much", "is not a size"),
        ("1", "1 is below 2"),
        ("40:0", "the weight of 40 must be above 0, not 0"),
        ("40:-1", "the weight of 40 must be above 0"),
        ("40:inf", "the weight of 40 must be above 0"),
        ("40:nan", "the weight of 40 must be above 0"),
    ],
)
def test_what_is_no_mixture_is_refused_by_the_name_of_its_option(text: str, reason: str) -> None:
    with pytest.raises(BenchError, match=f"^--x: .*{reason}"):
        Mixture.parse(text, option="--x", least=2)

"""The inverse of a cumulative distribution whose sums stray by a rounding, as where a device adds in parallel."""

from typing import Any

import mlx.core as mx
import pytest

from pomona.workers.sampling.invert import sample

UP = 2.0**-23
HALF = UP / 2


def summed_to(sums: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def cumsum(probabilities: mx.array, **_: Any) -> mx.array:
        return mx.array([sums])

    monkeypatch.setattr("pomona.workers.sampling.invert.mx.cumsum", cumsum)


@pytest.mark.parametrize(("number", "token"), [(0.0, 0), (0.5 - HALF, 0), (0.5, 2), (0.5 + HALF, 2), (1 - HALF, 2)])
def test_a_sum_that_grows_without_cause_lets_no_impossible_token_in(
    number: float, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed_to([0.5, 0.5 + UP, 1.0, 1.0 + UP], monkeypatch)
    assert sample(mx.array([[0.5, 0.0, 0.5, 0.0]]), [number]).tolist() == [token]


@pytest.mark.parametrize(("number", "token"), [(0.0, 0), (0.5, 1), (1 - HALF, 1)])
def test_a_sum_that_goes_back_leaves_a_token_for_the_highest_number(
    number: float, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed_to([0.5, 1.0 + UP, 1.0], monkeypatch)
    assert sample(mx.array([[0.5, 0.5, UP]]), [number]).tolist() == [token]

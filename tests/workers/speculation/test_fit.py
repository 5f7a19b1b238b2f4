"""The chi-square of counts against a law."""

import math

import pytest

from tests.workers.speculation.fit import Fit, fit


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 10.83), (7, 24.32), (30, 59.70), (120, 173.6)])
def test_a_thousandth_lies_beyond_the_quantile(freedom: int, quantile: float) -> None:
    assert Fit(quantile, freedom).p == pytest.approx(0.001, rel=0.2)
    assert Fit(freedom, freedom).p == pytest.approx(0.45, abs=0.15)


def test_the_distance_is_of_squares_over_expectations() -> None:
    assert fit({"a": 60, "b": 40}, {"a": 0.5, "b": 0.5}) == Fit(4.0, 1)


def test_rare_outcomes_share_a_bin() -> None:
    law = {"a": 0.9, "b": 0.04, "c": 0.03, "d": 0.03}
    assert fit({"a": 90, "b": 10}, law) == Fit(0.0, 1)
    only = fit({"a": 96, "b": 4}, {"a": 0.96, "b": 0.04})
    assert (only.freedom, only.p) == (0, 1)


def test_an_outcome_that_cannot_be_fits_no_law() -> None:
    assert fit({"a": 99, "b": 1}, {"a": 1.0}).distance == math.inf
    assert fit({"a": 99, "b": 1}, {"a": 1.0}).p == 0
    assert fit({"a": 100}, {"a": 1.0}).p == 1

"""Exact arithmetic on given moments."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.cli.bench.answer import Answer, Failure, Left
from pomona.cli.bench.metrics import FIRST_FAILURES, ratio_of, summarise
from pomona.cli.bench.quantile import Percentiles, percentile, percentiles_ms
from pomona.cli.bench.slo import Slo


def answer(started: float, deltas: tuple[float, ...], finished: float, tokens: int, finish: str = "length") -> Answer:
    return Answer(
        started=started, deltas=deltas, finished=finished, prompt_tokens=3, completion_tokens=tokens, finish=finish
    )


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_percentiles_agree_with_the_standard_library(values: list[float]) -> None:
    ordered = sorted(values)
    cuts = statistics.quantiles(ordered, n=100, method="inclusive")
    for share, cut in ((0.5, cuts[49]), (0.9, cuts[89]), (0.95, cuts[94]), (0.99, cuts[98])):
        assert percentile(ordered, share) == pytest.approx(cut, rel=1e-9, abs=1e-9)


def test_percentiles_of_one_value_are_that_value_and_of_none_absent() -> None:
    assert percentiles_ms([0.25]) == Percentiles(p50=250.0, p90=250.0, p95=250.0, p99=250.0, max=250.0)
    assert percentiles_ms([]) is None
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_percentiles_are_in_milliseconds_and_interpolated() -> None:
    assert percentiles_ms([0.004, 0.001, 0.002, 0.003, 0.005]) == Percentiles(
        p50=3.0, p90=4.6, p95=4.8, p99=4.96, max=5.0
    )


def test_a_load_is_summed_from_its_answers_over_the_whole_wall_time() -> None:
    result = summarise(
        [
            answer(10.0, (10.5, 11.0), 11.5, tokens=6),
            answer(10.25, (11.25, 11.5), 12.25, tokens=11, finish="stop"),
            Failure(started=9.0, finished=13.0, reason="HTTP 503"),
        ],
        concurrency=2,
    )
    assert (result.concurrency, result.requests, result.errors, result.first_errors) == (2, 2, 1, ("HTTP 503",))
    assert (result.prompt_tokens, result.completion_tokens) == (6, 17)
    assert result.wall_s == 4.0
    assert result.tokens_per_s == 17 / 4.0
    assert result.ttft_ms == Percentiles(p50=750.0, p90=950.0, p95=975.0, p99=995.0, max=1000.0)
    assert result.tpot_ms == Percentiles(p50=150.0, p90=190.0, p95=195.0, p99=199.0, max=200.0)
    assert result.whole_ms == Percentiles(p50=215.909, p90=243.182, p95=246.591, p99=249.318, max=250.0)
    assert result.gap_ms == Percentiles(p50=375.0, p90=475.0, p95=487.5, p99=497.5, max=500.0)
    assert result.finish == {"length": 1, "stop": 1}
    assert not result.interrupted


def test_failures_count_whole_but_only_the_first_are_told() -> None:
    result = summarise([Failure(started=0, finished=1, reason=str(n)) for n in range(9)], 4, interrupted=True)
    assert result.errors == 9
    assert result.first_errors == ("0", "1", "2")
    assert len(result.first_errors) == FIRST_FAILURES
    assert result.tokens_per_s == 0.0
    assert result.ttft_ms is None
    assert result.interrupted


def test_an_empty_load_gives_zeros() -> None:
    result = summarise([], 1)
    assert (result.requests, result.wall_s, result.tokens_per_s) == (0, 0.0, 0.0)


def test_ratios_are_taken_pair_by_pair() -> None:
    ratio = ratio_of([(30.0, 20.0), (10.0, 20.0), (22.0, 20.0)])
    assert ratio is not None
    assert (ratio.median, ratio.min, ratio.max, ratio.rounds) == (1.1, 0.5, 1.5, (1.5, 0.5, 1.1))


def test_a_pair_with_a_zero_gives_no_ratio() -> None:
    assert ratio_of([(0.0, 5.0), (5.0, 0.0)]) is None
    ratio = ratio_of([(0.0, 5.0), (6.0, 5.0)])
    assert ratio is not None
    assert ratio.rounds == (1.2,)


def test_what_its_client_broke_off_is_counted_apart_and_enters_no_latency() -> None:
    result = summarise(
        [
            answer(0.0, (1.0, 2.0), 2.0, tokens=4),
            Left(started=0.0, deltas=(0.5,), finished=0.5),
            Left(started=0.0, deltas=(), finished=4.0),
        ],
        concurrency=3,
    )
    assert (result.requests, result.errors, result.left) == (1, 0, 2)
    assert (result.completion_tokens, result.wall_s, result.ended_per_s) == (4, 4.0, 0.75)
    assert result.ttft_ms == percentiles_ms([1.0])
    assert result.latency_ms == percentiles_ms([2.0])


def test_an_open_loop_tells_what_it_offered_and_what_was_achieved() -> None:
    outcomes = [answer(float(start), (start + 1.0,), start + 4.0, tokens=1) for start in (0, 1, 4)]
    result = summarise(outcomes, 8, rate=0.7, load_percent=50.0, slo=Slo(ttft_ms=1000.0))
    assert (result.rate, result.load_percent, result.offered_per_s) == (0.7, 50.0, 0.5)
    assert result.ended_per_s == 0.375
    assert result.lag_ms == percentiles_ms([0.0] * 3)
    assert result.goodput is not None
    assert (result.goodput.met, result.goodput.share, result.goodput.per_s) == (3, 1.0, 0.375)


def test_a_part_of_an_open_loop_has_no_offered_rate_and_a_closed_one_neither_rate_nor_lag() -> None:
    outcomes = [answer(float(start), (start + 1.0,), start + 4.0, tokens=1) for start in (0, 1)]
    assert summarise(outcomes, 8, rate=0.7, interrupted=True).offered_per_s is None
    closed = summarise(outcomes, 8)
    assert (closed.rate, closed.offered_per_s, closed.lag_ms, closed.goodput) == (None, None, None, None)

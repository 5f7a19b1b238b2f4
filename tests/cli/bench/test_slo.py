"""Goodput on given moments."""

from hypothesis import given
from hypothesis import strategies as st

from pomona.cli.bench.answer import Answer, Failure, Left
from pomona.cli.bench.slo import GapRule, Slo, goodput


def answer(deltas: tuple[float, ...], tokens: int = 10) -> Answer:
    return Answer(
        started=0.0, deltas=deltas, finished=deltas[-1], prompt_tokens=1, completion_tokens=tokens, finish="length"
    )


def test_the_first_text_must_come_in_time() -> None:
    assert Slo(ttft_ms=500.0).met(answer((0.5,)))
    assert not Slo(ttft_ms=499.0).met(answer((0.5,)))


def test_the_99th_percentile_of_gaps_forgives_what_the_greatest_does_not() -> None:
    moments = tuple(0.01 * step for step in range(301))
    late = (*moments, moments[-1] + 1.0)
    assert Slo(gap_ms=50.0).met(answer(late))
    assert not Slo(gap_ms=50.0, gap_rule=GapRule.MAX).met(answer(late))
    assert not Slo(gap_ms=9.0).met(answer(late))


def test_the_time_per_token_is_a_promise_of_its_own() -> None:
    assert Slo(tpot_ms=100.0).met(answer((0.1, 1.0), tokens=10))
    assert not Slo(tpot_ms=99.0).met(answer((0.1, 1.0), tokens=10))


def test_an_answer_of_one_token_breaks_no_promise_about_the_next() -> None:
    assert Slo(gap_ms=0.001, tpot_ms=0.001).met(answer((0.5,), tokens=1))


def test_every_promise_must_be_kept() -> None:
    slo = Slo(ttft_ms=250.0, gap_ms=250.0, tpot_ms=150.0)
    assert slo.met(answer((0.1, 0.2, 0.3)))
    assert not slo.met(answer((0.3, 0.4, 0.5)))
    assert not slo.met(answer((0.1, 0.4, 0.5)))
    assert not slo.met(answer((0.1, 0.2, 0.3), tokens=2))


def test_failures_are_held_against_the_server_and_clients_that_left_are_not() -> None:
    outcomes = [
        answer((0.1,)),
        answer((0.9,)),
        Failure(started=0.0, finished=1.0, reason="HTTP 503"),
        Left(started=0.0, deltas=(), finished=1.0),
    ]
    found = goodput(outcomes, Slo(ttft_ms=500.0), wall_s=2.0)
    assert found is not None
    assert (found.met, found.share, found.per_s) == (1, 0.3333, 0.5)


def test_without_a_promise_or_a_request_there_is_no_goodput() -> None:
    assert goodput([answer((0.1,))], Slo(), wall_s=1.0) is None
    assert goodput([Left(started=0.0, deltas=(), finished=1.0)], Slo(ttft_ms=1.0), wall_s=1.0) is None


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=20), st.floats(0, 20_000), st.floats(0, 20_000))
def test_a_softer_promise_is_never_met_by_fewer(ttfts: list[float], one: float, other: float) -> None:
    strict, soft = sorted((one, other))
    answers = [answer((ttft,)) for ttft in ttfts]
    hard, easy = (goodput(answers, Slo(ttft_ms=limit), wall_s=1.0) for limit in (strict, soft))
    assert hard is not None
    assert easy is not None
    assert hard.met <= easy.met

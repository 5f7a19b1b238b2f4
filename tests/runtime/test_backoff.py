import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pomona.runtime.backoff import RestartPolicy, RestartRecord


def after(deaths: list[float], ready_at: float | None = None) -> RestartRecord:
    record = RestartRecord()
    for death in deaths:
        record = record.died(death, ready_at)
    return record


def test_an_actor_that_never_died_starts_at_once() -> None:
    assert RestartRecord().delay_s == 0.0


def test_the_first_restart_is_immediate_and_each_further_one_waits_twice_as_long_up_to_30_s() -> None:
    delays = [after([100.0 * n for n in range(deaths)]).delay_s for deaths in range(1, 12)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0])


def test_a_very_long_streak_does_not_overflow() -> None:
    assert RestartRecord(streak=100_000).delay_s == 30.0


def test_an_actor_that_was_ready_for_a_minute_has_a_clean_record() -> None:
    record = after([0.0, 10.0, 20.0])
    assert record.died(100.0, ready_at=40.0).delay_s == pytest.approx(0.1)
    assert record.died(99.9, ready_at=40.0).delay_s == pytest.approx(0.8)
    assert record.died(100.0, ready_at=None).delay_s == pytest.approx(0.8)


def test_five_deaths_within_a_minute_are_a_loop() -> None:
    assert not after([0.0, 10.0, 20.0, 30.0]).looping
    assert after([0.0, 10.0, 20.0, 30.0, 59.9]).looping
    assert not after([0.0, 10.0, 20.0, 30.0, 60.0]).looping
    assert after([0.0, 50.0, 60.0, 70.0, 80.0, 90.0]).looping


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 120.0), max_size=30), st.integers(1, 6), st.floats(1.0, 100.0))
def test_the_loop_breaker_counts_the_deaths_of_the_window(gaps: list[float], most: int, window_s: float) -> None:
    record = RestartRecord(RestartPolicy(max_deaths=most, window_s=window_s))
    time, deaths = 0.0, []
    for gap in gaps:
        time += gap
        deaths.append(time)
        record = record.died(time, None)
        assert record.looping == (sum(time - death < window_s for death in deaths) >= most)

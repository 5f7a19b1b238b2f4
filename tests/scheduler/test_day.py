"""Twenty-four hours of mixed load: nobody starves, nothing leaks, every law holds at every step."""

import pytest

from tests.scheduler.day import DAY_S, LIMITS, Day

PATIENCE_S = LIMITS.progress_timeout_s + 120
"""Within which a request begins whose client does not flood the server, though a worker hang meanwhile."""


def lived(seed: int) -> Day:
    day = Day(seed)
    day.live(arrivals_s=14, bursts_s=5400)
    return day


@pytest.fixture(scope="module")
def day() -> Day:
    return lived(0)


def test_every_request_of_the_day_ends_once_and_nothing_is_left(day: Day) -> None:
    assert day.now >= DAY_S
    day.check_rest()


def test_the_day_was_full_of_events(day: Day) -> None:
    assert day.ends["finished"] > 3000
    assert day.ends["cancelled"] > 100
    assert day.ends["client_limit"] > 0
    assert day.ends["prompt_length"] > 0
    assert day.incarnation > 0
    assert day.preempted > 10
    assert day.most_overtaken > 1
    assert day.most_waiting > 20
    assert sum(service.large for service in day.served.values()) > 50


def test_nobody_was_made_to_wait_beyond_the_bound(day: Day) -> None:
    assert day.ends["waited_too_long"] == day.ends["timed_out"] == day.ends["poison"] == 0


def test_a_client_that_floods_delays_itself_and_not_the_others(day: Day) -> None:
    assert day.worst_s(flooding=False, priorities=(-1, 0)) < PATIENCE_S
    assert day.worst_s(flooding=True, priorities=(0,)) > day.worst_s(flooding=False, priorities=(0,))


def test_large_requests_begin_as_surely_as_small_ones(day: Day) -> None:
    assert day.worst_s(flooding=False, priorities=(-1, 0), large=True) < PATIENCE_S


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1, 30))
def test_campaign_of_days(seed: int) -> None:
    day = lived(seed)
    day.check_rest()
    assert day.ends["waited_too_long"] == day.ends["timed_out"] == day.ends["poison"] == 0
    assert day.worst_s(flooding=False, priorities=(-1, 0)) < PATIENCE_S

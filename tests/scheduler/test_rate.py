from pomona.scheduler.rate import MAX_RETRY_S, CompletionRate


def test_the_time_to_come_back_is_what_the_queue_takes_at_the_measured_rate() -> None:
    rate = CompletionRate()
    for second in range(11):
        rate.note(float(second))
    assert rate.retry_after_s(22, 10.0) == 20
    assert rate.retry_after_s(23, 10.0) == 21


def test_it_is_at_least_a_second_and_at_most_the_limit() -> None:
    rate = CompletionRate()
    assert rate.retry_after_s(0, 0.0) == 1
    assert rate.retry_after_s(5, 0.0) == MAX_RETRY_S
    rate.note(0.0)
    assert rate.retry_after_s(0, 0.0) == 1
    assert rate.retry_after_s(1, 0.0) == 1
    assert rate.retry_after_s(10_000, 0.5) == MAX_RETRY_S


def test_what_ended_long_ago_says_nothing() -> None:
    rate = CompletionRate()
    for _ in range(100):
        rate.note(0.0)
    assert rate.retry_after_s(100, 50.0) == 50
    assert rate.retry_after_s(100, 61.0) == MAX_RETRY_S

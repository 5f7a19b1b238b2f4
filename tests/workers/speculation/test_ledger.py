import pytest

from pomona.workers.speculation.ledger import AT_FIRST, AT_MOST, SHARE, Ledger


def affordable(ledger: Ledger) -> float:
    """The most that it affords, in thousandths."""
    return max(step / 1000 for step in range(20_000) if ledger.affords(step / 1000))


def test_before_any_step_it_affords_nothing() -> None:
    ledger = Ledger()
    ledger.lost(5.0)
    ledger.won(5.0)
    assert not ledger.affords(0.0)


def test_some_plain_steps_may_be_lost_at_first() -> None:
    ledger = Ledger()
    ledger.passed(1.0, 1.0)
    assert affordable(ledger) == pytest.approx(AT_FIRST + SHARE, abs=0.002)


def test_what_is_lost_and_won_counts_in_full_and_time_in_part() -> None:
    ledger = Ledger()
    ledger.passed(1.0, 1.0)
    ledger.lost(1.5)
    ledger.won(0.25)
    ledger.passed(2.0, 1.0)
    assert affordable(ledger) == pytest.approx(AT_FIRST + 3 * SHARE - 1.25, abs=0.002)


def test_a_debt_is_worked_off_by_time() -> None:
    ledger = Ledger()
    ledger.passed(1.0, 1.0)
    ledger.lost(AT_FIRST + 11.5 * SHARE)
    steps = 0
    while not ledger.affords(0.0):
        ledger.passed(1.0, 1.0)
        steps += 1
    assert steps == 11


def test_no_more_is_kept_than_so_many_plain_steps() -> None:
    ledger = Ledger()
    ledger.passed(1.0, 1.0)
    ledger.won(1000.0)
    assert affordable(ledger) == pytest.approx(AT_MOST, abs=0.002)
    ledger.passed(1.0, 0.5)
    assert affordable(ledger) == pytest.approx(AT_MOST / 2, abs=0.002)

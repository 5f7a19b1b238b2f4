from pomona.scheduler.shares import MAX_REMEMBERED, Shares


def test_service_is_counted_for_its_client_and_output_weighs_double() -> None:
    shares = Shares()
    shares.join("a")
    shares.charge("a", prompt=3, output=2)
    assert shares.used("a") == 7
    assert shares.used("b") == 0


def test_who_comes_back_starts_no_lower_than_those_being_served() -> None:
    shares = Shares()
    shares.join("a")
    shares.join("b")
    shares.charge("a", prompt=10)
    shares.charge("b", prompt=4)
    shares.join("new")
    assert shares.used("new") == 4


def test_who_got_more_keeps_its_debt_while_it_is_away() -> None:
    shares = Shares()
    shares.join("a")
    shares.join("b")
    shares.charge("a", prompt=10)
    shares.leave("a")
    shares.join("a")
    assert shares.used("a") == 10


def test_debts_are_forgotten_when_nobody_is_served() -> None:
    shares = Shares()
    shares.join("a")
    shares.join("a")
    shares.charge("a", prompt=10)
    shares.leave("a")
    assert shares.used("a") == 10
    shares.leave("a")
    assert shares.used("a") == 0


def test_only_so_many_absent_clients_are_remembered() -> None:
    shares = Shares()
    shares.join("stays")
    for number in range(MAX_REMEMBERED + 5):
        shares.join(f"c{number}")
        shares.charge(f"c{number}", prompt=1)
        shares.leave(f"c{number}")
    assert shares.used("c4") == 0
    assert shares.used("c5") == 1
    assert shares.used(f"c{MAX_REMEMBERED + 4}") == 1
    shares.charge("stays", prompt=1)

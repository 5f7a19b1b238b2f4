"""Progress in a log and in a terminal."""

import io

from rich.console import Console

from pomona.cli.transfer import transfer


def test_a_log_gets_one_line_for_each_stage() -> None:
    log = io.StringIO()
    with transfer(Console(file=log, width=20)) as report:
        for done in (0, 5, 10):
            report(done, 10, "downloading a file with a [long] name")
        report(0, 3, "unpacking")
    assert log.getvalue() == "downloading a file with a [long] name\nunpacking\n"


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with transfer(console) as report:
        report(512, 1024, "downloading [x]")
    shown = screen.getvalue()
    assert "downloading [x]" in shown
    assert "0.5/1.0 kB" in shown
    assert shown.endswith("\x1b[2K")

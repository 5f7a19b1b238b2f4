import logging
import sys
from collections.abc import Iterator

import pytest

from pomona.runtime import log


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Logging is the process's own; other tests get it back as it was."""
    root, ours = logging.getLogger(), logging.getLogger("pomona")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def fail() -> None:
    try:
        raise KeyError("two\nlines")
    except KeyError:
        logging.getLogger("pomona.test").exception("broken file=%s", "x")


def test_an_event_is_one_line_with_the_actors_name(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("cache", "info")
    logging.getLogger("pomona.test").info("stored blocks=%d\nof=%s", 3, "y")
    fail()
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(" INFO    cache stored blocks=3 of=y")
    assert second.partition(" ERROR   cache broken file=x error=")[2].startswith("\"KeyError: 'two")
    assert f" at=test_log.py:{fail.__code__.co_firstlineno + 2}" in second


def test_debug_shows_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("cache", "debug")
    fail()
    assert "Traceback" in capsys.readouterr().err


def test_the_level_comes_from_the_environment_and_is_warning_by_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POMONA_LOG", raising=False)
    log.configure("cache")
    logging.getLogger("pomona.test").info("unseen")
    logging.getLogger("pomona.test").warning("seen")
    monkeypatch.setenv("POMONA_LOG", "INFO")
    log.configure("cache")
    logging.getLogger("pomona.test").info("seen too")
    logging.getLogger("elsewhere").info("other libraries stay quiet")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" cache ")[1] for line in lines] == ["seen", "seen too"]


def test_an_unknown_level_is_said_and_logs_more_instead_of_less(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("cache", "loud")
    logging.getLogger("pomona.test").info("seen")
    first, second = capsys.readouterr().err.splitlines()
    assert "POMONA_LOG=loud" in first
    assert "debug|info|warning|error" in first
    assert second.endswith("seen")


def test_a_record_is_left_whole_for_other_handlers() -> None:
    try:
        raise KeyError("x")
    except KeyError:
        record = logging.LogRecord("pomona", logging.ERROR, "here.py", 1, "broken", None, sys.exc_info())
    assert log.LineFormatter("cache", tracebacks=False).format(record).count("\n") == 0
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("a\n b"), "ValueError: a b"), (RuntimeError(), "RuntimeError"), (KeyError("k"), "KeyError: 'k'")],
)
def test_an_exception_in_one_line(error: Exception, text: str) -> None:
    assert log.one_line(error) == text

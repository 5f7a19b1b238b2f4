"""Logs are events with fields, one line each, on stderr: `TIME LEVEL actor event key=value`."""

import logging
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
VARIABLE = "POMONA_LOG"

Raised: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
"""What `sys.exc_info` gives."""


class LineFormatter(logging.Formatter):
    """One line for each event, with the error and its place if there is one; at debug level a traceback follows."""

    def __init__(self, actor: str, tracebacks: bool) -> None:
        super().__init__(f"%(asctime)s %(levelname)-7s {actor} %(message)s", "%Y-%m-%dT%H:%M:%S")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        if self._tracebacks:
            return super().format(record)
        # The record is shared with other handlers, so it is put back as it was.
        cached, record.exc_text = record.exc_text, None
        raised, record.exc_info = record.exc_info, None
        stack, record.stack_info = record.stack_info, None
        try:
            return " ".join(super().format(record).splitlines()) + _cause(raised)
        finally:
            record.exc_text, record.exc_info, record.stack_info = cached, raised, stack


def _cause(raised: Raised | None) -> str:
    """` error=… at=FILE:LINE`, the line that raised; nothing where nothing was raised."""
    if raised is None or raised[1] is None:
        return ""
    frames = traceback.extract_tb(raised[2])
    place = f" at={Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f" error={one_line(raised[1])[:300]!r}{place}"


def configure(actor: str, level: str | None = None) -> None:
    """Send this process's events to stderr; `level` defaults to POMONA_LOG, and that to `warning`.

    Other libraries stay at `warning` unless the level is `debug`. An unknown level counts as `info`, with a warning.
    """
    name = (level or os.environ.get(VARIABLE) or "warning").strip().lower()
    chosen = LEVELS.get(name, logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(actor, tracebacks=chosen <= logging.DEBUG))
    others = chosen if chosen <= logging.DEBUG else max(chosen, logging.WARNING)
    logging.basicConfig(level=others, handlers=[handler], force=True)
    logging.getLogger("pomona").setLevel(chosen)
    if name not in LEVELS:
        logging.getLogger(__name__).warning("unknown-level %s=%s choose=%s", VARIABLE, name, "|".join(LEVELS))


def one_line(error: BaseException) -> str:
    """An exception as `Type: text` on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

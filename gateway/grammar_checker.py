"""`python -m pomona.gateway.grammar_checker`: compiles constraints, one after the other, to see whether that works.

A process of its own, since compiling can take any time and memory and cannot be stopped from within. It says a line
when it is ready, reads one `Constraint` in JSON from each line of standard input, and answers each with a `Verdict`, a
line of standard output. It ends when its input does, in the midst of whatever it compiles.
"""

import os
import signal
import sys
import threading
from queue import SimpleQueue

import msgspec
from setproctitle import setproctitle

from pomona.workers.messages import Constraint

READY = b"ready\n"


class Verdict(msgspec.Struct):
    reason: str = ""
    """Why the constraint cannot be followed; empty if it can."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway's end is this one's end
    setproctitle("pomona: grammar checker")
    from llguidance import LLTokenizer

    lexicon = LLTokenizer("byte")
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    out = sys.stdout.buffer
    out.write(READY)
    out.flush()
    decoder = msgspec.json.Decoder(Constraint)
    while True:
        verdict = Verdict(_fault(lexicon, decoder.decode(lines.get())))
        out.write(msgspec.json.encode(verdict) + b"\n")
        out.flush()


def _read(lines: SimpleQueue[bytes]) -> None:
    while line := sys.stdin.buffer.readline():
        lines.put(line)
    os._exit(0)


def _fault(lexicon: object, constraint: Constraint) -> str:
    """Compiles, and computes the first mask: some grammars fail only there."""
    from llguidance import LLMatcher

    from pomona.workers.constraint.error import ConstraintError
    from pomona.workers.constraint.grammar import grammar_of, limits

    try:
        state = LLMatcher(lexicon, grammar_of(constraint), log_level=0, limits=limits())  # type: ignore[arg-type]
        if not state.is_error() and not state.is_stopped():
            state.compute_bitmask()
        if state.is_error():
            raise ConstraintError(state.get_error())
        if state.is_stopped() and not state.is_accepting():
            return "no answer fits it"
    except (ConstraintError, ValueError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()

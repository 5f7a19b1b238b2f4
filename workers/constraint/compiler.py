"""Compiles constraints beside the engine: a row waits for its grammar, and the rows that run do not."""

import logging
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Event, Thread

from pomona.runtime.mailbox import now
from pomona.workers.constraint.error import ConstraintError
from pomona.workers.constraint.grammar import grammar_of
from pomona.workers.constraint.matcher import Matcher
from pomona.workers.constraint.tokens import Tokens
from pomona.workers.messages import Constraint

log = logging.getLogger(__name__)

COMPILE_S = 30.0
"""Seconds of one compilation, at most; what is compiled here was compiled before, when the request came."""


class Compilation:
    """A constraint on its way to a matcher that stands behind `committed`, the tokens of a resumed answer."""

    def __init__(self, constraint: Constraint, committed: Sequence[int]) -> None:
        self._constraint = constraint
        self._committed = tuple(committed)
        self.began: float | None = None
        """When its turn came, in seconds of the worker's clock."""
        self.matcher: Matcher | None = None
        self.failure = ""
        """Why there will be no matcher."""
        self.abandoned = False
        """Nobody wants it any more."""
        self.overdue = False
        """Given up, as it took too long."""

    @property
    def done(self) -> bool:
        return self.matcher is not None or bool(self.failure)

    def run(self, tokens: Tokens) -> None:
        """Ends with a matcher or a failure, whatever goes wrong."""
        self.began = now()
        try:
            matcher = Matcher(tokens, grammar_of(self._constraint))
            for token in self._committed:
                matcher.commit(token)
            if not matcher.over:
                matcher.masks()  # the first takes longest
            self.matcher = matcher
        except (ConstraintError, ValueError) as error:
            self.failure = f"the constraint cannot be followed: {error}"
        except Exception as error:
            log.exception("compile failed")
            self.failure = f"the constraint could not be compiled: {type(error).__name__}: {error}"


class Compiler:
    """One thread that takes constraints in order. Grammars are not shared between rows: their lexers would share one
    budget of states, and one row could use up that of its neighbours.
    """

    def __init__(self, tokens: Tokens, limit_s: float = COMPILE_S) -> None:
        self._tokens = tokens
        self._limit_s = limit_s
        self._jobs: SimpleQueue[Compilation | None] = SimpleQueue()
        self._news = Event()
        self._thread = self._start()

    def begin(self, constraint: Constraint, committed: Sequence[int]) -> Compilation:
        """Queue one; it is done some time later."""
        compilation = Compilation(constraint, committed)
        self._jobs.put(compilation)
        return compilation

    def is_done(self, compilation: Compilation) -> bool:
        """Whether it ended; one that takes too long is given up here, and the next are taken by another thread."""
        began = compilation.began
        if not compilation.done and began is not None and now() - began > self._limit_s:
            compilation.overdue = True
            compilation.failure = f"the constraint was not compiled within {self._limit_s:g} s"
            self._thread = self._start()
        return compilation.done

    def wait(self, timeout_s: float) -> None:
        """Return when one has ended since the last call, or after `timeout_s`."""
        self._news.wait(timeout_s)
        self._news.clear()

    def close(self, deadline_s: float) -> None:
        """Take no more; a compilation that is still under way then is left to the end of the process."""
        self._jobs.put(None)
        self._thread.join(deadline_s)

    def _start(self) -> Thread:
        thread = Thread(target=self._work, name="compiler", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.abandoned:
                continue
            job.run(self._tokens)
            self._news.set()
            if job.overdue:
                return  # it took too long: another thread has taken over

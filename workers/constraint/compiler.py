"""Compiles grammars beside the engine: a row waits for its own, and the rows that run do not."""

import logging
from queue import SimpleQueue
from threading import Event, Thread

from pomona.runtime.mailbox import now
from pomona.workers.channels.graph import Body, graph_of
from pomona.workers.channels.guide import Guide, Route
from pomona.workers.channels.spelling import Spelling
from pomona.workers.constraint.error import ConstraintError
from pomona.workers.constraint.grammar import grammar_of
from pomona.workers.constraint.matcher import Matcher
from pomona.workers.constraint.tokens import Tokens
from pomona.workers.messages import Request

log = logging.getLogger(__name__)

COMPILE_S = 30.0
"""Seconds of one compilation, at most; what is compiled here was compiled before, when the request came."""


class Compilation:
    """A request on its way to a guide, which stands behind its committed tokens."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.began: float | None = None
        """When its turn came, in seconds of the worker's clock."""
        self.guide: Guide | None = None
        self.routes: list[Route] = []
        """Of the committed tokens."""
        self.failure = ""
        """Why there will be no guide."""
        self.abandoned = False
        """Nobody wants it any more."""
        self.overdue = False
        """Given up, as it took too long."""

    @property
    def done(self) -> bool:
        return self.guide is not None or bool(self.failure)

    def run(self, tokens: Tokens, spelling: Spelling) -> None:
        """Ends with a guide or a failure, whatever goes wrong."""
        self.began = now()
        try:
            guide = guide_of(self._request, tokens, spelling)
            self.routes = [guide.commit(token) for token in self._request.committed]
            if not guide.over:
                guide.masks()  # the first takes longest
            self.guide = guide
        except (ConstraintError, ValueError) as error:
            self.failure = f"the constraint cannot be followed: {error}"
        except Exception as error:
            log.exception("compile failed")
            self.failure = f"the constraint could not be compiled: {type(error).__name__}: {error}"


def guide_of(request: Request, tokens: Tokens, spelling: Spelling) -> Guide:
    """Raises ConstraintError and ValueError for a grammar that is none, or too large."""
    graph = graph_of(request)
    assert graph is not None, "nothing is to be followed"
    matchers = {
        name: Matcher(tokens, grammar_of(node.constraint))
        for name, node in graph.nodes.items()
        if isinstance(node, Body)
    }
    begun, budget = ("", None) if request.reasoning is None else (request.reasoning.begun, request.reasoning.budget)
    required = request.tools is not None and request.tools.required
    return Guide(
        graph,
        matchers,
        tokens,
        spelling,
        max_tokens=request.limits.max_tokens,
        begun=begun,
        budget=budget,
        ignore_eos=request.limits.ignore_eos and request.constraint is None and not required,
    )


class Compiler:
    """One thread that takes requests in order. Grammars are not shared between rows: their lexers would share one
    budget of states, and one row could use up that of its neighbours.
    """

    def __init__(self, tokens: Tokens, limit_s: float = COMPILE_S) -> None:
        self._tokens = tokens
        self.spelling = Spelling(tokens)
        self._limit_s = limit_s
        self._jobs: SimpleQueue[Compilation | None] = SimpleQueue()
        self._news = Event()
        self._thread = self._start()

    def begin(self, request: Request) -> Compilation:
        """Queue one; it is done some time later."""
        compilation = Compilation(request)
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
            job.run(self._tokens, self.spelling)
            self._news.set()
            if job.overdue:
                return  # it took too long: another thread has taken over

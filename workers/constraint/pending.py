"""The rows of an engine that wait for their guides."""

from typing import TYPE_CHECKING

from pomona.workers.constraint.compiler import Compilation, Compiler
from pomona.workers.messages import RequestId

if TYPE_CHECKING:
    from pomona.workers.row import Row

WAIT_S = 0.02
"""Seconds that an engine with nothing else to do waits at once; commands wait as long."""


class Pending:
    """Asks the compiler for the engine; a row that wants a constraint and cannot have it ends with an error.

    One that needs a guide only to tell thoughts and calls from its answer goes on without it then.
    """

    def __init__(self, compiler: Compiler | None) -> None:
        self._compiler = compiler
        self._rows: dict[RequestId, Compilation] = {}

    def begin(self, row: "Row") -> None:
        """A row has come."""
        if not row.wants_guide:
            return
        tools = row.request.tools
        held = tools is not None and (tools.required or tools.constraint or any(tools.named.values()))
        if self._compiler is not None:
            self._rows[row.request.id] = self._compiler.begin(row.request)
        elif row.request.constraint is not None or held:
            row.end("error", "this worker has no grammars, so the constraint cannot be followed")
        else:
            row.follow(None, ())

    def ready(self, row: "Row") -> bool:
        """Whether the row may go on: it has its grammar, wants none, or has just ended for the lack of it."""
        compilation = self._rows.get(row.request.id)
        if compilation is None or self._compiler is None:
            return True
        if not self._compiler.is_done(compilation):
            return False
        del self._rows[row.request.id]
        if compilation.guide is None or compilation.overdue:
            row.end("error", compilation.failure)
        else:
            row.follow(compilation.guide, compilation.routes)
        return True

    def forget(self, row: "Row") -> None:
        """The row has left; legal for one that waits for nothing."""
        compilation = self._rows.pop(row.request.id, None)
        if compilation is not None:
            compilation.abandoned = True

    def wait(self) -> None:
        """Wait a moment for a grammar, if any is awaited."""
        if self._compiler is not None and self._rows:
            self._compiler.wait(WAIT_S)

"""The tools of one request, for a model: what its template is given, what its worker is told, how calls are read."""

from collections.abc import Sequence
from typing import NamedTuple

from pomona.gateway.body import JsonObject
from pomona.gateway.constraint_schema import check_keywords
from pomona.gateway.errors import ApiError, invalid
from pomona.gateway.grammar_check import GrammarChecker
from pomona.gateway.tool_calls import CallReader
from pomona.gateway.tool_constraint import arguments_constraint, call_constraint
from pomona.gateway.tool_dialect import HARMONY, JSON, ToolDialect
from pomona.gateway.tool_fields import AskedTools, Tool
from pomona.workers.messages import Constraint, Tools


class ToolUse(NamedTuple):
    dialect: ToolDialect | None = None
    """None where no tools are offered to the model."""
    rendered: tuple[JsonObject, ...] = ()
    """For the chat template."""
    tools: Tools | None = None
    """For the worker."""
    warning: str | None = None

    def reader(self, prefix: str) -> CallReader:
        """For one answer; ids of calls begin with `prefix`."""
        return CallReader(self.dialect, self.rendered, prefix)


async def use_of(asked: AskedTools, dialect: ToolDialect | None, model: str, grammars: GrammarChecker) -> ToolUse:
    """`dialect` is the model's. Raises ApiError 400 for what it cannot be held to."""
    kinds = ", ".join(asked.left_out)
    warning = f"only functions are offered to the model, not tools of the kinds {kinds}" if kinds else None
    if not asked.tools:
        return ToolUse(warning=warning)
    if dialect is None:
        why = f"the chat template of model {model} takes no tools, or has calls written in a way that is not known here"
        if asked.required:
            raise invalid(
                f"tool_choice asks for a call, and {why}; choose another model, or leave tool_choice out",
                "tool_choice",
            )
        return ToolUse(warning=f"tools are not offered to the model: {why}" + (f"; {warning}" if warning else ""))
    tools = await _told(asked, dialect, model, grammars)
    # A call of a tool that is not allowed is kept from being written, or, if that cannot be, the tool is not told.
    shown = asked.tools if dialect.name in (HARMONY, JSON) else asked.allowed
    return ToolUse(dialect, tuple(tool.rendered() for tool in shown), tools, warning)


async def _told(asked: AskedTools, dialect: ToolDialect, model: str, grammars: GrammarChecker) -> Tools:
    """Calls of JSON always follow a grammar: then nothing in a text ends one, and each is an object."""
    bound = [tool for tool in asked.allowed if asked.required or tool.strict]
    for tool in bound:
        check_keywords(tool.parameters, tool.param)
    names = {tool.name for tool in bound}
    named: dict[str, Constraint | None] = {}
    constraint = None
    if dialect.name == HARMONY:
        for tool in asked.allowed:
            named[tool.name] = arguments = arguments_constraint(tool, bound=tool.name in names)
            if tool.name in names:
                await grammars.check(arguments, tool.param)
    elif dialect.name == JSON:
        constraint = call_constraint(asked.allowed, names)
        if bound:  # names and any object need no looking into
            await _check(constraint, bound, _why(asked, bound), grammars)
    elif bound:
        raise invalid(
            f"{_why(asked, bound)}: model {model} writes calls in the form {dialect.name}, which cannot be held to a "
            "schema here; leave tool_choice and strict out",
            _why(asked, bound),
        )
    return Tools(
        open=dialect.open,
        close=dialect.close,
        named=named,
        required=asked.required,
        parallel=asked.parallel,
        constraint=constraint,
    )


async def _check(constraint: Constraint, bound: Sequence[Tool], param: str, grammars: GrammarChecker) -> None:
    """Raises ApiError with the path of the tool that is at fault, where one is."""
    try:
        await grammars.check(constraint, param)
    except ApiError:
        for tool in bound:
            await grammars.check(arguments_constraint(tool, bound=True), tool.param)
        raise


def _why(asked: AskedTools, bound: Sequence[Tool]) -> str:
    """The field for which calls are held to a form."""
    return "tool_choice" if asked.required else bound[0].param

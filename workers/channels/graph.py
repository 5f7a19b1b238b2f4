"""The parts of an answer and the marks between them, as one small automaton; a pure function of the request.

Bytes move it, so a mark may be split over tokens in any way. Nothing here knows of tokens, masks or grammars.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pomona.reasoning_formats import Marks, marks_of, tool_headers
from pomona.workers.messages import Channel, Constraint, Request, Tools

THOUGHT = "thought"
START = "start"
AGAIN = "again"
GAP = "gap"
ANSWER = "answer"
UNOPENED = "unopened"
"""A free answer of a model that has not thought: the end of a thought may still turn up in it."""
CALL = "call"
CALLED = "behind a call"


class Mark(NamedTuple):
    text: bytes
    to: str
    """The part behind it."""
    tool: str = ""
    """That it names."""


class Choice(NamedTuple):
    """One of the marks is spelled out here, or, if there is a `direct`, that part begins without one."""

    marks: tuple[Mark, ...]
    direct: str = ""
    may_end: bool = False
    """The answer may be over here."""
    blanks: int = 8
    """Bytes of white space that may come first; they are nobody's text."""


class Free(NamedTuple):
    """Text up to one of the marks."""

    channel: Channel
    marks: tuple[Mark, ...] = ()
    may_end: bool = True


class Body(NamedTuple):
    """Text of a grammar, in which no mark is looked for."""

    channel: Channel
    constraint: Constraint
    then: str = ""
    """The part behind it when it is complete; empty for the end."""


Node = Choice | Free | Body


class Graph(NamedTuple):
    nodes: Mapping[str, Node]
    """By name; `THOUGHT` is what a model thinks, and a name that begins with `CALL` a call's text."""
    start: str
    closer: bytes
    """Ends a thought; empty where there is none."""
    header: bytes
    """Opens an answer behind a closer; empty where nothing does, or where several calls may follow."""


def graph_of(request: Request) -> Graph | None:
    """None where all text is the answer's, whatever it is."""
    reasoning, tools, constraint = request.reasoning, request.tools, request.constraint
    if reasoning is None and tools is None:
        return None if constraint is None else Graph({ANSWER: Body("content", constraint)}, ANSWER, b"", b"")
    nodes: dict[str, Any] = {}
    calls = () if tools is None else _calls(tools, nodes)
    required = tools is not None and tools.required
    direct = "" if required else ANSWER
    # In free text the marks of calls are looked for anyway.
    first = calls if required or constraint is not None else ()
    may_end = not required and constraint is None
    marks = None if reasoning is None else marks_of(reasoning.format, reasoning.suffix)
    if marks is None:
        closer = header = ""
        nodes[START] = Choice(first, direct, may_end)
    else:
        closer = marks.closer
        header = next((each.text for each in marks.headers if each.opens == "answer" and direct), "")
        _thoughts(marks, nodes, first if marks.bare else calls, direct, may_end=may_end)
        if may_end and not marks.again:
            nodes[UNOPENED] = Free("content", (*calls, Mark(closer.encode(), GAP)))
            nodes[START] = nodes[START]._replace(direct=UNOPENED)
    if constraint is not None:
        nodes[ANSWER] = Body("content", constraint)
    elif marks is None or marks.bare:
        nodes[ANSWER] = Free("content", calls)
    else:
        nodes[ANSWER] = Free("content", (Mark(closer.encode(), AGAIN),))
        nodes[AGAIN] = nodes[START]._replace(may_end=True)
    return Graph(nodes, START, closer.encode(), header.encode())


def _thoughts(marks: Marks, nodes: dict[str, Any], calls: tuple[Mark, ...], direct: str, *, may_end: bool) -> None:
    closer = marks.closer.encode()
    headers = [
        Mark(header.text.encode(), THOUGHT if header.opens == "thought" else ANSWER)
        for header in marks.headers
        if direct or header.opens == "thought"
    ]
    after = START if marks.again else GAP
    nodes[THOUGHT] = Free("reasoning", (Mark(closer, after),), may_end=False)
    # Some models end a thought that they never began.
    stray = [] if marks.again else [Mark(closer, GAP)]
    bare = direct if marks.bare else ""
    start = Choice((*headers, *stray, *calls), bare, may_end and marks.bare)
    # Headers are written without white space between them, and some begin with it.
    nodes[START] = start if marks.bare else start._replace(blanks=0)
    nodes[GAP] = Choice(calls, bare, may_end)


def _calls(tools: Tools, nodes: dict[str, Any]) -> tuple[Mark, ...]:
    """The marks that open a call; adds the parts of a call's text, and of what follows it."""
    closes = (Mark(tools.close.encode(), CALLED),) if tools.close else ()
    opens: list[Mark] = []
    for name, constraint in (tools.named or {"": tools.constraint}).items():
        part = f"{CALL} {name}".strip()
        texts = tool_headers(name) if name else (tools.open,)
        opens += [Mark(text.encode(), part, name) for text in texts]
        if constraint is None:
            nodes[part] = Free("tool_call", closes)
        else:
            nodes[part] = Choice((), f"{part}:text")
            nodes[f"{part}:text"] = Body("tool_call", constraint, f"{part}:end" if closes else "")
            nodes[f"{part}:end"] = Choice(closes)
    more = tuple(opens) if tools.parallel else ()
    if tools.required or not tools.parallel:
        nodes[CALLED] = Choice(more, may_end=True)
    else:
        nodes[CALLED] = Choice((), ANSWER, may_end=True)
    return tuple(opens)

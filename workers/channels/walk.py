"""Bytes through a graph: where they lead, and whose text they are. Pure; masks, routing and replay all ask it."""

from typing import NamedTuple

from pomona.workers.channels.graph import CALL, Body, Choice, Free, Graph, Mark
from pomona.workers.messages import Channel

WHITE = b" \n\r\t"


class Strayed(Exception):
    """The bytes can not stand here."""


class Segment(NamedTuple):
    """Text of one channel."""

    channel: Channel
    text: bytes
    call: int = 0
    tool: str = ""


class Place(NamedTuple):
    """Where an answer stands; bounded, whatever was written before."""

    node: str
    spelled: bytes = b""
    """Beginning of one or more of the node's marks; nobody's text yet."""
    bound: bool = False
    """A special token is part of what is spelled: it can only be a mark."""
    blanks: int = 0
    """Bytes of white space that were left out at the node's beginning."""
    calls: int = 0
    """Calls that were begun."""
    tool: str = ""
    """What the mark of the last call named."""
    fresh: bool = True
    """Nothing of a thought was written yet."""


class Walked(NamedTuple):
    place: Place
    segments: tuple[Segment, ...] = ()
    rest: bytes = b""
    """What is left for the grammar of the place, a `Body`."""


def walk(graph: Graph, place: Place, data: bytes, *, special: bool = False) -> Walked:
    """Go on behind one token's bytes, or, of a `special` one, its name, which is no text but that of a call.

    Raises Strayed where it can not stand.
    """
    segments: list[Segment] = []
    while data:
        node = graph.nodes[place.node]
        match node:
            case Choice():
                place, data = _choose(graph, node, place, data, special=special)
            case Free():
                place, data, segment = _read(node, place, data, special=special)
                if segment is not None:
                    segments.append(segment)
            case Body():
                if special:
                    raise Strayed
                break
    return Walked(place, tuple(segments), data)


def withheld(graph: Graph, place: Place) -> Segment | None:
    """At the end of an answer: text that could have become a mark. What special tokens have spelled is no text."""
    node = graph.nodes[place.node]
    if isinstance(node, Choice) and node.direct:
        node = graph.nodes[node.direct]
    return _segment(node, place, place.spelled) if isinstance(node, Free) and not place.bound else None


def _choose(graph: Graph, node: Choice, place: Place, data: bytes, *, special: bool) -> tuple[Place, bytes]:
    if not place.spelled and not special:
        left = data.lstrip(WHITE)
        blanks = place.blanks + len(data) - len(left)
        if blanks <= node.blanks:
            place, data = place._replace(blanks=blanks), left
            if not data:
                return place, b""
    spelled = place.spelled + data
    for mark in node.marks:
        if spelled.startswith(mark.text) and not (special and spelled != mark.text):
            return _behind(mark, place), spelled[len(mark.text) :]
    if any(mark.text.startswith(spelled) for mark in node.marks):
        return place._replace(spelled=spelled, bound=place.bound or special), b""
    if place.bound or not node.direct:
        raise Strayed
    direct = graph.nodes[node.direct]
    if not special or (isinstance(direct, Free) and any(mark.text.startswith(data) for mark in direct.marks)):
        return Place(node.direct, calls=place.calls, tool=place.tool, fresh=place.fresh), spelled
    if isinstance(direct, Body):
        raise Strayed
    return place, b""


def _read(node: Free, place: Place, data: bytes, *, special: bool) -> tuple[Place, bytes, Segment | None]:
    special = special and node.channel != "tool_call"  # calls are written with special tokens in some dialects
    if place.bound and not any(_meet(mark.text, place.spelled + data) for mark in node.marks):
        place = place._replace(spelled=b"", bound=False)
    text = place.spelled + data
    hits = [(index, -len(mark.text), mark) for mark in node.marks if (index := text.find(mark.text)) >= 0]
    keep = _open_suffix(node, text)
    if special and keep < len(data) and not any(index - length == len(text) for index, length, _ in hits):
        text, hits, keep = place.spelled, [], 0  # no mark, so it is nobody's text
    if hits:
        index, length, mark = min(hits)
        segment = _segment(node, place, text[:index])
        return _behind(mark, _told(place, segment)), text[index - length :], segment
    segment = _segment(node, place, text[: len(text) - keep])
    bound = keep > 0 and (special or (place.bound and keep > len(data)))
    return _told(place, segment)._replace(spelled=text[len(text) - keep :], bound=bound), b"", segment


def _meet(mark: bytes, text: bytes) -> bool:
    return mark.startswith(text) or text.startswith(mark)


def _behind(mark: Mark, place: Place) -> Place:
    return Place(mark.to, calls=place.calls + mark.to.startswith(CALL), tool=mark.tool, fresh=place.fresh)


def _told(place: Place, segment: Segment | None) -> Place:
    return place._replace(fresh=place.fresh and not (segment is not None and segment.channel == "reasoning"))


def _segment(node: Free, place: Place, text: bytes) -> Segment | None:
    if node.channel == "reasoning" and place.fresh:
        text = text.lstrip(WHITE)
    if not text:
        return None
    call = place.calls - 1 if node.channel == "tool_call" else 0
    return Segment(node.channel, text, call, place.tool)


def _open_suffix(node: Free, text: bytes) -> int:
    """Length of the longest end of `text` that begins a mark."""
    longest = max((len(mark.text) for mark in node.marks), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        tail = text[len(text) - size :]
        if any(mark.text.startswith(tail) for mark in node.marks):
            return size
    return 0

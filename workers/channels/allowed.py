"""Which tokens may come next outside of grammars: those that the walk can take, whatever they run through."""

from collections.abc import Iterable, Mapping, Sequence

from pomona.workers.channels.graph import THOUGHT, Body, Choice, Free, Graph, Mark
from pomona.workers.channels.spelling import Spelling
from pomona.workers.channels.walk import Place, Strayed, Walked, walk
from pomona.workers.constraint.error import ConstraintError
from pomona.workers.constraint.matcher import Matcher
from pomona.workers.constraint.tokens import Tokens, Words


class Allowed:
    """Masks of one request, each made once: they depend on the place alone, as its grammars have not begun there."""

    def __init__(self, graph: Graph, beginnings: Mapping[str, Matcher], tokens: Tokens, spelling: Spelling) -> None:
        self._graph = graph
        self._beginnings = beginnings
        self._tokens = tokens
        self._spelling = spelling
        self._masks: dict[tuple[Place, bool], Words | None] = {}
        self._fitting: dict[tuple[str, bytes], bool] = {}

    def walk(self, place: Place, token: int) -> Walked | None:
        """Where a token leads; None if it can not stand there."""
        try:
            piece = self._spelling.bytes_of(token)
            return walk(self._graph, place, piece, special=self._spelling.is_special(token))
        except Strayed:
            return None

    def at(self, place: Place, *, spent: bool) -> Words | None:
        """What may come next; None is anything. `spent`: no more may be thought.

        Raises ConstraintError where nothing can follow.
        """
        key = (place, spent)
        if key not in self._masks:
            node = self._graph.nodes[place.node]
            assert not isinstance(node, Body), "its matcher tells"
            self._masks[key] = (
                self._chosen(place, node, spent) if isinstance(node, Choice) else self._read(place, node, spent)
            )
        return self._masks[key]

    def _read(self, place: Place, node: Free, spent: bool) -> Words | None:
        """All tokens but those that would run through a mark into what can not stand there."""
        crossing: set[int] = set()
        for mark in node.marks:
            crossing.update(self._spelling.holding(mark.text))
            for size in range(1, len(place.spelled) + 1):
                if mark.text.startswith(place.spelled[-size:]):
                    crossing.update(self._spelling.beyond(mark.text[size:]))
        refused = {token for token in crossing if not self._may(place, token, spent)}
        if not node.may_end and place.node != THOUGHT:
            refused |= self._tokens.eos
        return None if not refused else self._tokens.known & ~self._tokens.words(refused)

    def _chosen(self, place: Place, node: Choice, spent: bool) -> Words | None:
        """Tokens that spell a mark, that run through one, or that begin what may come without one."""
        marks = [mark for mark in node.marks if mark.text.startswith(place.spelled)]
        direct = None if place.bound or not node.direct else self._graph.nodes[node.direct]
        if isinstance(direct, Free):  # a thought that may not be is closed as soon as it is opened
            return self._all_but(place, marks, spent)
        open_marks = [mark for mark in marks if not (spent and mark.to == THOUGHT)]
        if not open_marks and not node.direct:
            open_marks = marks  # through a thought that is closed at once
        allowed: set[int] = set()
        for mark in open_marks:
            left = mark.text[len(place.spelled) :]
            allowed.update(self._spelling.within(left))
            allowed.update(token for token in self._spelling.beyond(left) if self._may(place, token, spent))
        if not place.spelled:
            blanks = node.blanks - place.blanks
            allowed.update(token for token, size in self._spelling.blank if size <= blanks)
        mask = self._tokens.words(allowed - (self._tokens.eos - self._marks_of(place, allowed)))
        if node.may_end and not place.bound:
            mask = mask | self._tokens.ends
        if isinstance(direct, Body):
            mask = mask | self._first_of(node.direct, place.spelled)
        if not mask.any():
            raise ConstraintError("no token of the model can follow")
        return mask

    def _marks_of(self, place: Place, tokens: Iterable[int]) -> set[int]:
        """Ends of sequence that are a part of a mark here."""
        return {token for token in tokens if token in self._tokens.eos and self.walk(place, token) is not None}

    def _all_but(self, place: Place, marks: Sequence[Mark], spent: bool) -> Words | None:
        beyond = {token for mark in marks for token in self._spelling.beyond(mark.text[len(place.spelled) :])}
        refused = {token for token in beyond if not self._may(place, token, spent)}
        return None if not refused else self._tokens.known & ~self._tokens.words(refused)

    def _first_of(self, name: str, spelled: bytes) -> Words:
        """Tokens that a grammar may begin with, behind the bytes that turned out to be no mark."""
        beginning = self._beginnings[name].fork()
        try:
            if spelled:
                beginning.feed(spelled)
            return beginning.masks()[0] if not beginning.over else self._tokens.ends
        except ConstraintError:
            return self._tokens.words(())

    def _may(self, place: Place, token: int, spent: bool) -> bool:
        walked = self.walk(place, token)
        if walked is None:
            return False
        if spent and walked.place.node == THOUGHT and place.node != THOUGHT:
            return False
        return not walked.rest or self._fits(walked.place.node, walked.rest)

    def _fits(self, name: str, rest: bytes) -> bool:
        key = (name, rest)
        if key not in self._fitting:
            try:
                self._beginnings[name].fork().feed(rest)
                self._fitting[key] = True
            except ConstraintError:
                self._fitting[key] = False
        return self._fitting[key]

"""Where one answer stands between thought, calls and answer: what may come next, and whose text it is."""

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import takewhile
from typing import NamedTuple

from pomona.workers.channels.allowed import Allowed
from pomona.workers.channels.graph import THOUGHT, Body, Choice, Free, Graph
from pomona.workers.channels.loops import Loops
from pomona.workers.channels.spelling import Spelling
from pomona.workers.channels.walk import Place, Segment, Walked, walk, withheld
from pomona.workers.constraint.error import ConstraintError
from pomona.workers.constraint.matcher import Matcher
from pomona.workers.constraint.tokens import Tokens, Words


class Route(NamedTuple):
    """What one token was."""

    segments: tuple[Segment, ...]
    is_answer: bool
    """It belongs to the content of the answer."""
    is_mark: bool
    """It is a special token that opens or closes a part; if it is an end of sequence too, it ends nothing."""


class Guide:
    """The state of one row, moved by `commit` alone; one function of bytes serves masks, routing and replay.

    Raises ConstraintError from wherever nothing can follow, or a token is not allowed.
    """

    def __init__(
        self,
        graph: Graph,
        matchers: Mapping[str, Matcher],
        tokens: Tokens,
        spelling: Spelling,
        *,
        max_tokens: int,
        begun: str = "",
        budget: int | None = None,
        ignore_eos: bool = False,
    ) -> None:
        """`matchers`: of each `Body`, by its name; they stay at its beginning. `begun`: marks that the prompt ends in.

        `budget`: tokens of thought, behind which it is closed. `ignore_eos`: an end of sequence ends no free text.
        """
        nodes = dict(graph.nodes)
        for name, node in nodes.items():
            if isinstance(node, Choice) and node.direct in matchers and _takes_blanks(matchers[node.direct]):
                nodes[name] = node._replace(blanks=0)
        self._graph = graph._replace(nodes=nodes)
        self._beginnings = matchers
        self._tokens = tokens
        self._spelling = spelling
        self._allowed = Allowed(self._graph, matchers, tokens, spelling)
        self._left = max_tokens
        self._budget = budget
        self._ignore_eos = ignore_eos
        self._matcher: Matcher | None = None
        self._loops = Loops()
        self.thought_tokens = 0
        """Tokens that were written in thoughts, their closers included."""
        self.over = False
        """Nothing can follow."""
        self._place = Place(graph.start)
        self._enter(walk(self._graph, self._place, begun.encode()))

    # what may come next

    def masks(self, drafts: Sequence[int] = ()) -> list[Words | None]:
        """What may come next, and behind each of `drafts`, as `legal` gives them; None is anything."""
        masks = [self._mask()]
        if drafts:
            ahead = self.fork()
            for draft in drafts:
                ahead.commit(draft)
                masks.append(ahead._mask())
        return masks

    def legal(self, drafts: Sequence[int]) -> int:
        """How many of `drafts`, from the first on, may come next; an end-of-sequence token is none of them."""
        ahead = self.fork()
        for count, draft in enumerate(drafts):
            if ahead.over or draft in self._tokens.eos:
                return count
            try:
                ahead.commit(draft)
            except ConstraintError:
                return count
        return len(drafts)

    def forced(self, limit: int) -> tuple[int, ...]:
        """Tokens that come next whatever is drawn, at most `limit`, an end-of-sequence token never among them.

        They are those of a grammar, or of the close of a thought that may not go on, up to its end.
        """
        if self.over:
            return ()
        if not isinstance(self._node, Body):
            closing = self._closing()[:limit]
            return tuple(takewhile(lambda token: token not in self._tokens.eos, closing))
        assert self._matcher is not None, "made when the body was entered"
        return self._matcher.forced(limit)

    def fork(self) -> "Guide":
        other = copy(self)
        other._loops = self._loops.fork()
        other._matcher = None if self._matcher is None else self._matcher.fork()
        return other

    def detour(self, token: int) -> list[int]:
        """What is written instead of `token`, an end of sequence in a thought: the thought's end and what opens the
        answer. Empty where it is no such thing, or no room is left for an answer.
        """
        if self._place.node != THOUGHT or self._is_mark(token):
            return []
        plan = self._spelling.spell(self._graph.closer[len(self._place.spelled) :] + self._graph.header)
        return plan if plan and len(plan) < self._left else []

    # going on

    def commit(self, token: int) -> Route:
        """Go on behind a token."""
        if self.over:
            raise ConstraintError(f"token {token} follows an answer that is complete")
        before, nodes = self._place, self._graph.nodes
        segments, is_mark = self._follow(token)
        self._left -= 1
        if before.node == THOUGHT:
            self.thought_tokens += 1
            self._loops.push(token)
        answers = any(segment.channel == "content" for segment in segments) or (
            not is_mark and (_is_content(nodes[before.node]) or (_is_content(self._node) and bool(self._place.spelled)))
        )
        return Route(segments, answers, is_mark)

    def flush(self) -> Segment | None:
        """At the end: text that was withheld, since it could have become a mark."""
        return withheld(self._graph, self._place)

    @property
    def _node(self) -> Choice | Free | Body:
        return self._graph.nodes[self._place.node]

    def _follow(self, token: int) -> tuple[tuple[Segment, ...], bool]:
        node = self._node
        if isinstance(node, Body):
            assert self._matcher is not None, "made when the body was entered"
            if not (node.then and self._matcher.complete and not self._matcher.legal([token])):
                return self._write(node, self._matcher, token), False
            self._place = self._behind(node)
        is_mark = self._is_mark(token)
        if token in self._tokens.eos and not is_mark and not self._ignore_eos:
            self._end(token)
            return (), False
        walked = self._allowed.walk(self._place, token)
        if walked is None:
            raise ConstraintError(f"token {token} is not allowed here")
        self._enter(walked)
        return walked.segments + self._entered(walked), is_mark

    def _write(self, node: Body, matcher: Matcher, token: int) -> tuple[Segment, ...]:
        if node.then and token in self._tokens.eos:
            raise ConstraintError(f"token {token} ends the answer where it is not complete")
        matcher.commit(token)
        text = b"" if self._spelling.is_special(token) else self._spelling.bytes_of(token)
        segments = self._of(node, text, self._place)
        self._look(node)
        return segments

    def _end(self, token: int) -> None:
        node = self._node
        if not (self._place.node == THOUGHT or (not isinstance(node, Body) and node.may_end and not self._place.bound)):
            raise ConstraintError(f"token {token} ends the answer where it is not complete")
        self.over = True

    def _enter(self, walked: Walked) -> None:
        self._place = walked.place
        node = self._node
        if isinstance(node, Body):
            self._matcher = self._beginnings[self._place.node].fork()
            if walked.rest:
                self._matcher.feed(walked.rest)
            self._look(node)
        else:
            self._matcher = None

    def _entered(self, walked: Walked) -> tuple[Segment, ...]:
        """The first text of a grammar's, which came with the token that opened it."""
        node = self._graph.nodes[walked.place.node]
        return self._of(node, walked.rest, walked.place) if isinstance(node, Body) else ()

    def _of(self, node: Body, text: bytes, place: Place) -> tuple[Segment, ...]:
        call = place.calls - 1 if node.channel == "tool_call" else 0
        return (Segment(node.channel, text, call, place.tool),) if text else ()

    def _look(self, node: Body) -> None:
        """The grammar may be over, and the answer with it."""
        assert self._matcher is not None, "made when the body was entered"
        if self._matcher.over and not node.then:
            self.over = True
        elif self._matcher.over:
            self._place = self._behind(node)
            self._matcher = None

    def _behind(self, node: Body) -> Place:
        return self._place._replace(node=node.then, spelled=b"", bound=False, blanks=0)

    def _is_mark(self, token: int) -> bool:
        node = self._node
        if not self._spelling.is_special(token) or isinstance(node, Body):
            return False
        if token in self._tokens.eos and _is_content(node):
            return False
        walked = self._allowed.walk(self._place, token)
        return walked is not None and (
            walked.place.node != self._place.node or len(walked.place.spelled) > len(self._place.spelled)
        )

    # masks

    @property
    def _spent(self) -> bool:
        """No more may be thought."""
        return self._loops.found or (self._budget is not None and self.thought_tokens >= self._budget)

    def _mask(self) -> Words | None:
        node = self._node
        if isinstance(node, Body):
            assert self._matcher is not None, "made when the body was entered"
            mask = self._matcher.masks()[0]
            if node.then:
                mask = mask & ~self._tokens.ends
                if self._matcher.complete:
                    mask = _either(mask, self._allowed.at(self._behind(node), spent=self._spent))
            return mask
        closing = self._closing()
        if closing:
            return self._tokens.words(closing[:1])
        return self._allowed.at(self._place, spent=self._spent)

    def _closing(self) -> list[int]:
        """What a thought that may not go on is closed with; empty elsewhere, and where no room is left behind it."""
        if self._place.node != THOUGHT or not self._spent:
            return []
        plan = self._spelling.spell(self._graph.closer[len(self._place.spelled) :])
        return plan if len(plan) < self._left else []


def _is_content(node: Choice | Free | Body) -> bool:
    return not isinstance(node, Choice) and node.channel == "content"


def _takes_blanks(beginning: Matcher) -> bool:
    """Whether a grammar's text may begin with white space, which then is not to be left out."""
    for blank in (b" ", b"\n", b"\t", b"\r"):
        try:
            beginning.fork().feed(blank)
        except ConstraintError:
            continue
        return True
    return False


def _either(mask: Words, other: Words | None) -> Words:
    assert other is not None, "what follows a grammar is a mark"
    return mask | other

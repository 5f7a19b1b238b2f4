"""The RAM tier: what this worker computed lately for prompts and answers, each common beginning held once.

Blocks form a tree by the tokens before them, and each salt has one of its own. Where prompts part, the block that both
begin with is cut in two. Under pressure the least recent block goes; a beginning is always more recent than what lies
behind it, so tails go before heads. Where all layers hold slices, a prefix is restored up to any token; layers of state
can go on only from where their state was marked, which is always at the end of a block.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from pomona.workers import layers
from pomona.workers.mark import Mark, take_mark, thinned
from pomona.workers.ram_block import RamBlock, Tokens, joined, take_blocks

BLOCK_TOKENS = 128
"""Tokens of the longest block, unless told otherwise: what goes at once under pressure."""


class RamPrefix(NamedTuple):
    """The beginning of a prompt that can be restored."""

    length: int
    """In tokens."""
    blocks: tuple[RamBlock, ...]
    """From the first token on, of at least `length` tokens."""
    mark: Mark | None
    """The state behind `length` tokens, where layers hold state."""


class Node:
    """A block in its place in the tree; the roots and their common parent hold an empty one."""

    __slots__ = ("block", "children", "key", "mark", "parent", "stop")

    def __init__(self, parent: "Node | None", key: int | str, block: RamBlock, stop: int) -> None:
        self.parent = parent or self
        """Of what all roots hang from, itself."""
        self.key = key
        """In the parent's `children`: the first token; the salt of a root."""
        self.block = block
        self.stop = stop
        """Tokens up to the block's last, from the first of the prompt on."""
        self.mark: Mark | None = None
        """The state behind `stop` tokens."""
        self.children: dict[int | str, Node] = {}

    @property
    def nbytes(self) -> int:
        return self.block.nbytes + (self.mark.nbytes if self.mark is not None else 0)


NOTHING = RamBlock(np.array([], dtype=np.int64), (), 0)


class RecentPrefixes:
    """Never holds more than `max_bytes` bytes of blocks and marks; with 0 it keeps nothing."""

    def __init__(self, max_bytes: int, block_tokens: int = BLOCK_TOKENS) -> None:
        self._max_bytes = max_bytes
        self._block_tokens = block_tokens
        self.clear()

    def clear(self) -> None:
        self._trunk = Node(None, "", NOTHING, 0)
        self._order: OrderedDict[Node, None] = OrderedDict()  # least recent first; no child after its parent
        self._stateful = False
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        return self._bytes

    @property
    def entries(self) -> int:
        """Blocks held."""
        return len(self._order)

    @property
    def keeps(self) -> bool:
        return self._max_bytes > 0

    # looking up

    def longest(self, tokens: Sequence[int], salt: str) -> RamPrefix | None:
        """The longest beginning of `tokens` that can be restored, which counts as a use of it; None if none can."""
        path, common = self._walk(np.array(tokens, dtype=np.int64), salt)
        if self._stateful:
            while path and (path[-1].mark is None or path[-1].stop > common):
                path.pop()
            common = path[-1].stop if path else 0
        if not path:
            return None
        self._touch(path)
        return RamPrefix(common, tuple(node.block for node in path), path[-1].mark)

    def shared(self, tokens: Sequence[int], salt: str) -> int:
        """Tokens with which `tokens` and something remembered begin, whether they can be restored or not."""
        return self._walk(np.array(tokens, dtype=np.int64), salt)[1]

    def _walk(self, tokens: Tokens, salt: str) -> tuple[list[Node], int]:
        """The blocks that `tokens` run through, the last perhaps not to its end, and how many tokens they share."""
        path: list[Node] = []
        common, node = 0, self._trunk.children.get(salt)
        while node is not None and common == node.stop and common < len(tokens):
            node = node.children.get(int(tokens[common]))
            if node is not None:
                path.append(node)
                common += node.block.common(tokens[common:])
        return path, common

    def _touch(self, path: Sequence[Node]) -> None:
        """A use of all of them, given from the first on; the first is the most recent then."""
        for node in reversed(path):
            self._order.move_to_end(node)

    # remembering

    def remember(self, tokens: Sequence[int], salt: str, caches: Sequence[Any], marks: Sequence[Mark] = ()) -> None:
        """Keep what `caches` hold of `tokens`: a copy of what is new in it, as far as all of it has room.

        `marks` are of earlier ends within `tokens`. Nothing is kept of caches that do not hold so many tokens or, with
        layers of state, stand elsewhere.
        """
        each = list(layers.leaves(caches))
        if not (self.keeps and each and len(tokens) and all(layers.holds(cache, len(tokens)) for cache in each)):
            return
        wanted = np.array(tokens, dtype=np.int64)
        path, common = self._walk(wanted, salt)
        token_bytes = _token_bytes(each)
        self._stateful = any(map(layers.is_state, each))
        if not self._stateful:
            end = min(len(tokens), self._max_bytes // token_bytes)
            self._grow(wanted[:end], salt, caches, common, ())
            return
        held = [node for node in path if node.stop <= common]
        kept = self._kept_marks(held, [*marks, take_mark(caches, len(tokens))], token_bytes)
        for node in held:
            if node.mark is not None and not any(node.mark is mark for mark in kept):
                self._mark(node, None)
        new = [mark for mark in kept if not any(node.mark is mark for node in held)]
        self._grow(wanted[: kept[-1].tokens if kept else 0], salt, caches, common, new)

    def _kept_marks(self, held: Sequence[Node], marks: Sequence[Mark], token_bytes: int) -> list[Mark]:
        """Of marks along a path, new ones and those of its blocks `held`, what fits beside the slices before the last.

        Where prompts part is dear: it is the end of what they share.
        """
        by_tokens = {mark.tokens: mark for mark in marks}
        by_tokens |= {node.stop: node.mark for node in held if node.mark is not None}
        ascending = [by_tokens[tokens] for tokens in sorted(by_tokens)]
        while ascending and token_bytes * ascending[-1].tokens + ascending[-1].nbytes > self._max_bytes:
            ascending.pop()
        if not ascending:
            return []
        forks = [node.stop for node in held if len(node.children) > 1]
        return thinned(ascending, self._max_bytes - token_bytes * ascending[-1].tokens, forks)

    def _grow(self, tokens: Tokens, salt: str, caches: Sequence[Any], common: int, marks: Sequence[Mark]) -> None:
        """Add blocks for what lies behind the first `common` of `tokens`, and marks; all along them has room alone."""
        if not len(tokens):
            return
        common, ends = min(common, len(tokens)), {mark.tokens: mark for mark in marks}
        new = len(tokens) > common
        for cut in sorted({*ends, *([common] if new else [])}):
            self._cut(tokens, salt, cut)
        path, _ = self._walk(tokens[:common], salt)
        whole = range((common // self._block_tokens + 1) * self._block_tokens, len(tokens), self._block_tokens)
        stops = sorted({*whole, *(end for end in ends if end > common), len(tokens)}) if new else []
        blocks = take_blocks(tokens, caches, stops, common)
        node = path[-1] if path else self._trunk.children.setdefault(salt, Node(self._trunk, salt, NOTHING, 0))
        for block, stop in zip(blocks, stops, strict=True):
            node = self._insert(node, block, stop)
            path.append(node)
        for node in path:
            if node.stop in ends:
                self._mark(node, ends[node.stop])
        self._touch(path)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._order)))
        mx.async_eval([block.slices for block in blocks])  # now that there is room

    def _insert(self, parent: Node, block: RamBlock, stop: int) -> Node:
        node = Node(parent, int(block.tokens[0]), block, stop)
        parent.children[node.key] = node
        self._order[node] = None
        self._bytes += block.nbytes
        return node

    def _mark(self, node: Node, mark: Mark | None) -> None:
        self._bytes -= node.nbytes
        node.mark = mark
        self._bytes += node.nbytes

    def _cut(self, tokens: Tokens, salt: str, at: int) -> None:
        """Make a block end behind the first `at` of `tokens`, if one runs across; its mark stays at its end."""
        path, common = self._walk(tokens[:at], salt)
        if not path or common != at or path[-1].stop == at:
            return
        tail = path[-1]
        parent, start = tail.parent, tail.stop - len(tail.block.tokens)
        first, second = tail.block.cut(at - start)
        mx.async_eval([first.slices, second.slices])
        self._bytes -= tail.block.nbytes
        head = self._insert(parent, first, at)
        tail.parent, tail.key, tail.block = head, int(second.tokens[0]), second
        head.children[tail.key] = tail
        self._bytes += second.nbytes
        self._touch(path[:-1])

    def take_back(self, tokens: Sequence[int], salt: str, beyond: int) -> None:
        """Forget what was remembered of `tokens` behind the first `beyond`, as far as nothing else goes on from it."""
        path, _ = self._walk(np.array(tokens, dtype=np.int64), salt)
        for node in reversed(path):
            if node.stop > beyond and node in self._order and not node.children:
                self._drop(node)

    def _drop(self, leaf: Node) -> None:
        """Forget a block with none behind it, and those before it from which nothing can be restored any more."""
        while True:
            del self._order[leaf]
            self._bytes -= leaf.nbytes
            parent = leaf.parent
            del parent.children[leaf.key]
            if parent.parent is self._trunk and not parent.children:
                del self._trunk.children[parent.key]
            if parent.children or parent not in self._order or not self._stateful or parent.mark is not None:
                return
            leaf = parent

    def thinned(self, marks: Sequence[Mark]) -> list[Mark]:
        """Those of ascending marks that might be kept, so that a long prompt does not gather more."""
        return thinned(marks, self._max_bytes)


def _token_bytes(caches: Sequence[Any]) -> int:
    """Bytes that one token takes over all layers of slices."""
    held = (cache for cache in caches if not layers.is_state(cache))
    return sum(int(array.nbytes) for cache in held for array in layers.slices(cache, 0, 1))


def copy_prefix(prefix: RamPrefix, caches: Sequence[Any], room: int = 0) -> None:
    """Fill empty caches: one copy of the slices, into buffers that have `room` places or as many as are needed."""
    slices = iter(joined(prefix.blocks, prefix.length, room))
    states = iter(prefix.mark.states if prefix.mark is not None else ())
    for cache in layers.leaves(caches):
        layers.fill(cache, next(states) if layers.is_state(cache) else next(slices), prefix.length)

"""Prompts on their way into the batch, computed in chunks between decode steps."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from pomona.workers.mark import Mark
from pomona.workers.prefix import PrefixStore
from pomona.workers.row import Row
from pomona.workers.slots import SlotCache, SlotLengths
from pomona.workers.writeback import Pending

SHARED_REACH = 1024
"""Tokens up to which a prompt is computed together with others; beyond it, copying its KV costs more than it saves."""
WORTH_WAITING = 32
"""Tokens of a common beginning for which a prompt waits until another has computed them."""
NEVER = 1 << 62
"""As the tokens of a row that are stored: nothing of it is ever to be."""
WORTH_MARKING = 32
"""Tokens behind the last stored state from which on a fork gets a forward that ends there, to be marked."""


class Prefill:
    """The computation of all tokens but the last of one or more rows whose tokens are identical."""

    def __init__(self, model: Any, row: Row, prefixes: PrefixStore) -> None:
        self._model = model
        self._prefixes = prefixes
        self.rows = [row]
        self._tokens = row.tokens[:-1]
        self._salt = row.request.cache_salt
        self.caches: list[Any] = make_prompt_cache(model)
        self._looked_up = False
        self.restored = 0
        """Tokens that need not be computed, as far as `begin` has found."""
        self.done = 0
        self._stored = 0  # tokens whose whole blocks are handed to the disk
        self._marks: list[Mark] = []
        self._sound = True
        """Nothing that was computed is known to be no number."""
        self._aside: list[Pending] = []
        self._fork = 0

    @property
    def left(self) -> int:
        return len(self._tokens) - self.done

    @property
    def nbytes(self) -> int:
        return sum(int(cache.nbytes) for cache in self.caches) + sum(mark.nbytes for mark in self._marks)

    @property
    def can_share(self) -> bool:
        """True if its next chunk can be computed together with others'."""
        return len(self._tokens) <= SHARED_REACH and self._is_plain

    @property
    def _is_plain(self) -> bool:
        return all(type(cache) is KVCache for cache in self.caches)

    @property
    def computed(self) -> int:
        """Tokens that were not restored."""
        return self.done - self.restored

    def begin(self) -> None:
        """Restore the longest stored prefix; again, while nothing is computed, if the memory holds a longer one."""
        if self._looked_up and (self.computed or self._prefixes.in_memory(self._tokens, self._salt) <= self.done):
            return
        self._looked_up = True
        self.caches = make_prompt_cache(self._model)
        self.restored = self.done = self._stored = self._prefixes.restore(self._tokens, self._salt, self.caches)
        fork = self._prefixes.fork(self._tokens, self._salt)
        self._fork = fork if fork - self.done >= WORTH_MARKING else 0
        first = self.rows[0]  # for the others all of the prompt counts as restored
        if first.is_new:
            first.cached_tokens = min(self.restored, len(first.request.prompt))

    def waits_for(self, other: "Prefill") -> bool:
        """True if what `other` is about to compute would save this one enough to come after it."""
        if self._salt != other._salt or not (self._prefixes.keeps_recent and self._is_plain):
            return False
        return shared_beginning(self._tokens, other._tokens) - self.done >= WORTH_WAITING

    def serves(self, row: Row) -> bool:
        """True if another row can use the very same computation."""
        return row.request.cache_salt == self._salt and row.tokens[:-1] == self._tokens

    def attach(self, row: Row) -> None:
        """Let another row use it too; all of its prompt counts as restored."""
        self.rows.append(row)
        if row.is_new:
            row.cached_tokens = min(len(self._tokens), len(row.request.prompt))

    def chunk(self, count: int) -> int:
        """How many tokens of at most `count` its next forward computes."""
        stop = self._fork if self._fork > self.done else len(self._tokens)
        return self._prefixes.chunk(self.done, min(stop - self.done, count))

    def next_tokens(self, count: int) -> list[int]:
        return self._tokens[self.done : self.done + count]

    def advance(self, count: int) -> None:
        """The next tokens are computed: hand whole blocks to the disk, so that whatever ends this keeps them.

        The last of them wait for `finish`.
        """
        before, self.done = self.done, self.done + count
        self._sound = self._sound and self._prefixes.sound(self.caches, before, self.done)
        if not self._sound:
            return
        if self.left:
            held = self._tokens[: self.done]
            self._stored = self._prefixes.store(held, self._salt, self.caches, self._stored, last=False)
        self._marks = self._prefixes.marked(self._marks, self.caches, self.done, self._fork)

    def store(self) -> None:
        """Keep what was computed for good, also what a cancelled request leaves; it is not written any more."""
        self.finish()
        self.prove(finite=True)

    def finish(self) -> None:
        """Remember what was computed, and copy its last blocks for the disk: `prove` is to say what becomes of them.

        The caches may be written from now on.
        """
        if not self._sound:
            for row in self.rows:
                row.stored = NEVER
            return
        held = self._tokens[: self.done]
        self._stored = self._prefixes.store(held, self._salt, self.caches, self._stored, aside=self._aside)
        self._prefixes.remember(held, self._salt, self.caches, self._marks)
        for row in self.rows:
            row.stored = self._stored

    def prove(self, *, finite: bool) -> None:
        """The logits behind the prompt are `finite` or not: then what `finish` has kept stays or goes."""
        if finite:
            self._prefixes.put(self._aside)
        elif self._sound:
            self._prefixes.take_back(self._tokens, self._salt, self.restored)
        self._aside = []


class Part(NamedTuple):
    """The next `tokens` tokens of a prompt."""

    prefill: Prefill
    tokens: int


def plan_chunk(prefills: Sequence[Prefill], tokens: int) -> list[Part]:
    """What one forward of about `tokens` tokens computes: the first prompt's next tokens, and with them whole ends.

    Prompts that end in this forward are computed together, padded to the longest; the padding counts. Each is looked
    up when its turn comes, so that it finds what those before it have computed.
    """
    first = prefills[0]
    first.begin()
    parts = [Part(first, first.chunk(tokens))]
    if first.left > tokens or not first.can_share:
        return parts
    width = first.left
    for prefill in prefills[1:]:
        if width * (len(parts) + 1) > tokens:
            break
        prefill.begin()
        if any(prefill.waits_for(part.prefill) for part in parts):
            continue
        wider = max(width, prefill.left)
        if not prefill.can_share or wider * (len(parts) + 1) > tokens:
            break
        width = wider
        parts.append(Part(prefill, prefill.left))
    return parts


def shared_beginning(one: list[int], other: list[int]) -> int:
    """Tokens with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def run_chunk(model: Any, parts: Sequence[Part]) -> int:
    """Compute the parts in one forward; returns the tokens computed, padding included."""
    width = max(part.tokens for part in parts)
    if width == 0:
        return 0
    if len(parts) == 1:
        ((prefill, count),) = parts
        model(mx.array([prefill.next_tokens(count)], dtype=mx.int32), cache=prefill.caches)
        mx.eval([cache.state for cache in prefill.caches])
    else:
        _run_together(model, parts, width)
    for prefill, count in parts:
        prefill.advance(count)
    return width * len(parts)


def _run_together(model: Any, parts: Sequence[Part], width: int) -> None:
    """Rows lie left-aligned: what the padding writes behind a row's end is not part of it."""
    shared = SlotLengths()
    caches = [SlotCache(shared) for _ in parts[0].prefill.caches]
    for prefill, _ in parts:
        for cache, single in zip(caches, prefill.caches, strict=True):
            cache.join(single)
        shared.lengths.append(prefill.done)
    inputs = [prefill.next_tokens(count) + [0] * (width - count) for prefill, count in parts]
    shared.begin()
    model(mx.array(inputs, dtype=mx.int32), cache=caches)
    shared.lengths = [prefill.done + count for prefill, count in parts]
    taken = [[cache.extract(index) for cache in caches] for index in range(len(parts))]
    mx.eval([cache.state for row in taken for cache in row])  # where this raises, the prompts keep what they had
    for (prefill, _), row in zip(parts, taken, strict=True):
        prefill.caches = list(row)


def without(prefills: Sequence[Prefill], row: Row) -> tuple[list[Prefill], list[Prefill]]:
    """The prefills that go on without `row`, and those that nobody waits for any more."""
    for prefill in prefills:
        prefill.rows = [other for other in prefill.rows if other is not row]
    return [each for each in prefills if each.rows], [each for each in prefills if not each.rows]

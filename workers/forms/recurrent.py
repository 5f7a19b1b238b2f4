"""Recurrent state of all rows: the batch form of mlx-lm's `ArraysCache`."""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from pomona.workers.slots import SlotLengths


class RecurrentCache(ArraysCache):  # type: ignore[misc]  # mlx-lm has no types
    """One layer's state arrays, [rows, ...] each; row i of every array is row i's.

    No token can be cut out of state. But a forward makes new arrays and leaves the old ones as they were, so holding
    on to those is all it takes to go back. Where rows feed different numbers of tokens, the model finds in `lengths`
    how many of each row's count, and leaves the padding out.
    """

    refusal = ""
    is_state = True
    overwrites = False
    widest = None

    def __init__(self, shared: SlotLengths, size: int) -> None:
        self._shared = shared
        self.cache: list[mx.array | None] = [None] * size
        self.left_padding = None
        self._held: list[mx.array | None] | None = None

    @property
    def as_cache(self) -> "RecurrentCache":
        return self

    @property
    def lengths(self) -> mx.array | None:
        """int32 [rows]: how many of the tokens in this forward count; None if all do."""
        return None if self._shared.fed is None else mx.array(self._shared.fed, dtype=mx.int32)

    def advance(self, tokens: int) -> None:
        """A forward is one chunk: what counts of the next one is told before it."""

    @property
    def nbytes(self) -> int:
        arrays = {id(array): array for array in [*self.cache, *(self._held or [])] if array is not None}
        return sum(int(array.nbytes) for array in arrays.values())

    def join(self, single: ArraysCache) -> None:
        rows = len(self._shared.lengths)
        self.cache = [_joined(own, new, rows) for own, new in zip(self.cache, single.cache, strict=True)]
        if self._held is not None:
            self._held = [_joined(own, new, rows) for own, new in zip(self._held, single.cache, strict=True)]

    def keep(self, rows: list[int]) -> None:
        order = mx.array(rows, dtype=mx.int32)
        self.cache = [None if array is None else array[order] for array in self.cache]
        if self._held is not None:
            self._held = [None if array is None else array[order] for array in self._held]

    def extract(self, index: int) -> ArraysCache:
        """A copy of what the row is settled on."""
        taken = ArraysCache(len(self.cache))
        settled = self.cache if self._held is None else self._held
        taken.cache = [None if array is None else mx.contiguous(array[index : index + 1]) for array in settled]
        return taken

    def hold(self) -> None:
        self._held = list(self.cache)

    def settle(self, whole: Sequence[bool]) -> None:
        """Rows that do not keep all that they fed go back to what they held. Raises ValueError if nothing is held."""
        if self._held is None:
            raise ValueError("recurrent state was not held before the forward that is to be settled")
        if not all(whole):
            kept = mx.array(list(whole))
            self.cache = [_chosen(kept, new, old) for new, old in zip(self.cache, self._held, strict=True)]
        self._held = None


def _joined(own: mx.array | None, new: mx.array | None, rows: int) -> mx.array | None:
    """A row behind the others; state that was never set is zero."""
    like = new if own is None else own
    if like is None:
        return None
    if own is None:
        own = mx.zeros((rows, *like.shape[1:]), dtype=like.dtype)
    if new is None:
        new = mx.zeros((1, *like.shape[1:]), dtype=like.dtype)
    return mx.concatenate([own, new])


def _chosen(kept: mx.array, new: mx.array | None, old: mx.array | None) -> mx.array | None:
    if new is None:
        return None
    if old is None:
        old = mx.zeros_like(new)
    return mx.where(kept.reshape(-1, *[1] * (new.ndim - 1)), new, old)

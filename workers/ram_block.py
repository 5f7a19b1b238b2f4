"""A block of the RAM tier: what the layers of slices hold of a run of tokens, in arrays that nobody writes again."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pomona.workers import layers

Tokens = NDArray[np.int64]


class RamBlock(NamedTuple):
    tokens: Tokens
    slices: tuple[tuple[mx.array, ...], ...]
    """Of each layer of slices, [1, heads, len(tokens), size] each; none where all layers hold state."""
    nbytes: int
    """Of the slices."""

    def common(self, tokens: Tokens) -> int:
        """Tokens with which both begin."""
        size = min(len(self.tokens), len(tokens))
        differing = np.flatnonzero(self.tokens[:size] != tokens[:size])
        return int(differing[0]) if len(differing) else size

    def cut(self, at: int) -> tuple["RamBlock", "RamBlock"]:
        """Two blocks, of the first `at` tokens and of the others: copies, so that each can go without the other."""
        size = len(self.tokens)
        return _block(self.tokens[:at], self.slices, 0, at), _block(self.tokens[at:], self.slices, at, size)


def _block(tokens: Tokens, slices: Sequence[Sequence[mx.array]], start: int, stop: int) -> RamBlock:
    own = tuple(tuple(mx.contiguous(array[..., start:stop, :]) for array in layer) for layer in slices)
    return RamBlock(tokens.copy(), own, sum(int(array.nbytes) for layer in own for array in layer))


def take_blocks(tokens: Tokens, caches: Sequence[Any], stops: Sequence[int], start: int) -> list[RamBlock]:
    """What caches hold of `tokens[start:]`, a block up to each of the ascending `stops`: copies, not evaluated yet."""
    held = [cache for cache in layers.leaves(caches) if not layers.is_state(cache)]
    slices = [layers.slices(cache, 0, len(tokens)) for cache in held]
    bounds = zip([start, *stops], stops, strict=False)
    return [_block(tokens[begin:stop], slices, begin, stop) for begin, stop in bounds]


def joined(blocks: Sequence[RamBlock], length: int, room: int) -> list[list[mx.array]]:
    """The first `length` tokens of consecutive blocks, one array for each of a layer's, with `room` places in all.

    What lies behind `length` is zero: whoever goes on there writes in place.
    """
    layers_of_all = zip(*(block.slices for block in blocks), strict=True)
    return [[_joined(parts, length, room) for parts in zip(*layer, strict=True)] for layer in layers_of_all]


def _joined(parts: Sequence[mx.array], length: int, room: int) -> mx.array:
    *whole, last = parts
    rest = length - sum(part.shape[2] for part in whole)
    pieces = [*whole, last[..., :rest, :]]
    if room > length:
        rows, heads, _, size = last.shape
        pieces.append(mx.zeros((rows, heads, room - length, size), dtype=last.dtype))
    return mx.concatenate(pieces, axis=2)

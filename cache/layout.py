"""What the caches of one model look like: with it the bytes of a block are arrays, without it they are noise."""

from typing import Literal, NamedTuple

Dtype = Literal["float32", "float16", "bfloat16", "uint32", "int32"]

ITEM_BYTES: dict[Dtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "uint32": 4, "int32": 4}

SMALLEST_BLOCK = 16
LARGEST_BLOCK = 512

LayerKind = Literal["kv", "quantized", "rotating", "chunked", "arrays"]
"""mlx-lm's KVCache, QuantizedKVCache, RotatingKVCache, ChunkedKVCache and ArraysCache."""


class ArrayLayout(NamedTuple):
    """One array of a layer."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    """Of one row; an axis of tokens, which all kinds but "arrays" have, is the third and counts 1."""

    @property
    def nbytes(self) -> int:
        size = ITEM_BYTES[self.dtype]
        for length in self.shape:
            size *= length
        return size


class LayerLayout(NamedTuple):
    """One cache of one layer.

    A layer of slices holds an entry for each token, which can be cut out and joined. A layer of state holds what it
    needs after one exact number of tokens: the last `span` of them, or arrays that no token can be cut out of.
    """

    kind: LayerKind
    arrays: tuple[ArrayLayout, ...]
    span: int = 0
    """Tokens that a window or a chunk holds at most; 0 for the other kinds."""
    group_size: int = 0
    bits: int = 0
    """Of quantised keys and values."""

    @property
    def is_state(self) -> bool:
        return self.kind in ("rotating", "chunked", "arrays")

    @property
    def nbytes(self) -> int:
        """Bytes of one token, or of arrays without an axis of tokens."""
        return sum(array.nbytes for array in self.arrays)

    def state_tokens(self, end: int) -> int:
        """Tokens along the third axis of a window or chunk behind `end` tokens; 1 where there is no such axis."""
        return min(self.span, end) if self.span else 1


def plain(heads: int, key_dim: int, value_dim: int, dtype: Dtype = "float32") -> LayerLayout:
    """Keys [1, heads, tokens, key_dim] and values [1, heads, tokens, value_dim], the commonest layer."""
    keys = ArrayLayout("keys", dtype, (1, heads, 1, key_dim))
    return LayerLayout("kv", (keys, ArrayLayout("values", dtype, (1, heads, 1, value_dim))))


class KVLayout(NamedTuple):
    """All caches of a model, in order; the members of a list of caches stand for it."""

    layers: tuple[LayerLayout, ...]

    @property
    def has_state(self) -> bool:
        """True if a prefix can be restored only where its state was taken."""
        return any(layer.is_state for layer in self.layers)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes over all layers of slices."""
        return sum(layer.nbytes for layer in self.layers if not layer.is_state)

    def state_bytes(self, end: int) -> int:
        """Bytes of the state behind `end` tokens."""
        return sum(layer.nbytes * layer.state_tokens(end) for layer in self.layers if layer.is_state)

    def block_tokens(self, block_bytes: int) -> int:
        """Tokens of a block that aims at `block_bytes`: the power of two from 16 to 512 that fits.

        Where the state is large, a block grows until its slices weigh as much, so that half of the bytes are not spent
        on what one token more would change.
        """
        tokens, state = SMALLEST_BLOCK, self.state_bytes(LARGEST_BLOCK)
        while tokens < LARGEST_BLOCK and 2 * tokens * self.token_bytes <= max(block_bytes - state, state):
            tokens *= 2
        return tokens

    def fields(self) -> list[str]:
        """All of it as text, unambiguous, for a hash."""
        fields = [str(len(self.layers))]
        for layer in self.layers:
            fields += [layer.kind, *map(str, (layer.span, layer.group_size, layer.bits, len(layer.arrays)))]
            for array in layer.arrays:
                fields += [array.name, array.dtype, str(len(array.shape)), *map(str, array.shape)]
        return fields

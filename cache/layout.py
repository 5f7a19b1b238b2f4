"""What the KV of one model looks like: with it the bytes of a block are arrays, without it they are noise."""

from typing import Literal, NamedTuple

KVDtype = Literal["float32", "float16", "bfloat16"]

ITEM_BYTES: dict[KVDtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2}

SMALLEST_BLOCK = 16
LARGEST_BLOCK = 512


class LayerLayout(NamedTuple):
    """One layer: keys are [1, heads, tokens, key_dim], values [1, heads, tokens, value_dim]."""

    heads: int
    key_dim: int
    value_dim: int
    kind: Literal["kv"] = "kv"


class KVLayout(NamedTuple):
    """All layers of a model, in order, and the dtype that all of them share."""

    dtype: KVDtype
    layers: tuple[LayerLayout, ...]

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes over all layers."""
        return ITEM_BYTES[self.dtype] * sum(layer.heads * (layer.key_dim + layer.value_dim) for layer in self.layers)

    def block_tokens(self, block_bytes: int) -> int:
        """Tokens of a block that aims at `block_bytes`: the power of two from 16 to 512 that fits."""
        tokens = SMALLEST_BLOCK
        while tokens < LARGEST_BLOCK and 2 * tokens * self.token_bytes <= block_bytes:
            tokens *= 2
        return tokens

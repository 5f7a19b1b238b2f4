"""What a stored block is called: a chain of hashes over token ids, from a root that names all else behind its bytes.

Equal keys mean equal bytes, in every process and after every restart; Python's own `hash` promises neither.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from pomona.cache.layout import KVLayout
from pomona.cache.messages import BlockKey

FORMAT_VERSION = 2
"""Raised whenever the bytes of a block file change their meaning; older files are then never asked for and age out."""

KEY_BYTES = 32


class Fingerprint(NamedTuple):
    """Everything besides the tokens and the tenant's salt that changes the bytes of a block."""

    weights: str
    """Digest of the weights."""
    tokenizer: str
    """Digest of the tokenizer."""
    layout: KVLayout
    block_tokens: int
    adapter: str = ""
    """Digest of the adapter, empty without one."""
    engine: str = ""
    """What computes the KV, such as the versions of MLX and mlx-lm and the device."""

    def root(self, salt: str) -> BlockKey:
        """The parent of first blocks; two salts share no block."""
        fields = [
            str(FORMAT_VERSION),
            self.weights,
            self.tokenizer,
            self.adapter,
            self.engine,
            salt,
            str(self.block_tokens),
            *self.layout.fields(),
        ]
        digest = blake2b(digest_size=KEY_BYTES, person=b"pomona.kv.root")
        for field in fields:
            # A length before each field: no two lists of fields give the same bytes.
            data = field.encode()
            digest.update(struct.pack("<Q", len(data)) + data)
        return BlockKey(digest.digest())


def chain(root: BlockKey, tokens: Sequence[int], block_tokens: int) -> tuple[BlockKey, ...]:
    """The keys of the whole blocks of `tokens`, first to last; a tail shorter than a block has none.

    Raises ValueError for a block size below 1 or a token id that 32 bits do not hold.
    """
    if block_tokens < 1:
        raise ValueError(f"a block of {block_tokens} tokens is no block; use at least 1")
    blocks = len(tokens) // block_tokens
    whole = tokens[: blocks * block_tokens]
    try:
        packed = memoryview(struct.pack(f"<{len(whole)}I", *whole))
    except struct.error as error:
        raise ValueError(f"token ids must be 0 to {2**32 - 1}: {error}") from error
    keys: list[BlockKey] = []
    parent = root
    for block in range(blocks):
        digest = blake2b(parent, digest_size=KEY_BYTES, person=b"pomona.kv.block")
        digest.update(packed[4 * block * block_tokens : 4 * (block + 1) * block_tokens])
        parent = BlockKey(digest.digest())
        keys.append(parent)
    return tuple(keys)

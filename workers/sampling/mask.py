"""Masks of tokens on the device: llguidance's kernel where there is Metal, plain operations of MLX elsewhere."""

import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from pomona.workers import device

BITS = np.arange(32, dtype=np.uint32)
Mask = npt.NDArray[np.uint32]
"""One bit a token, bit `t % 32` of word `t // 32`."""


def masked(logits: mx.array, masks: Sequence[Mask]) -> mx.array:
    """float32 [masks, vocabulary] in and out: -inf where a row's mask has no bit, all else as it was.

    Words that are missing allow nothing, surplus ones are left out.
    """
    words = _words(masks, logits.shape[-1])
    return masked_by_kernel(logits, words) if device.on_metal() else masked_by_operations(logits, words)


def masked_by_kernel(logits: mx.array, words: Mask) -> mx.array:
    """On Metal alone; `words` [masks, ceil(vocabulary / 32)]."""
    from llguidance.mlx import apply_token_bitmask  # it asks for Metal as it is called

    result: mx.array = apply_token_bitmask(logits, words.view(np.int32))
    return result


def masked_by_operations(logits: mx.array, words: Mask) -> mx.array:
    """Anywhere; `words` [masks, ceil(vocabulary / 32)]."""
    bits = (mx.array(words)[:, :, None] >> mx.array(BITS)) & 1
    allowed = bits.reshape(len(words), -1)[:, : logits.shape[-1]].astype(mx.bool_)
    return mx.where(allowed, logits, -math.inf)


def _words(masks: Sequence[Mask], vocabulary: int) -> Mask:
    words = np.zeros((len(masks), -(-vocabulary // 32)), dtype=np.uint32)
    for row, mask in zip(words, masks, strict=True):
        held = min(len(mask), len(row))
        row[:held] = mask[:held]
    return words

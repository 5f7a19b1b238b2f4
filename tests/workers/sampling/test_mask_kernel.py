"""Both ways to apply masks, against each other and against NumPy."""

import math
from collections.abc import Sequence

import llguidance.mlx
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from pomona.workers import device
from pomona.workers.sampling.mask import Mask, masked, masked_by_kernel, masked_by_operations

SHAPES = [(1, 1), (1, 32), (2, 33), (3, 1000), (8, 49152), (5, 151_669)]
"""Rows and vocabulary: whole words and parts of one."""


def drawn(rows: int, vocabulary: int) -> tuple[npt.NDArray[np.float32], Mask]:
    random = np.random.default_rng(rows * vocabulary)
    logits = random.normal(0, 5, (rows, vocabulary)).astype(np.float32)
    logits.flat[:: max(1, vocabulary // 7)] = -math.inf
    words = random.integers(0, 2**32, (rows, -(-vocabulary // 32)), dtype=np.uint32)
    words[0] = random.choice([0, 2**32 - 1], words.shape[1])
    return logits, words


def expected(logits: npt.NDArray[np.float32], words: Mask) -> npt.NDArray[np.float32]:
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]]
    return np.where(bits.astype(bool), logits, np.float32(-math.inf))


@pytest.mark.parametrize(("rows", "vocabulary"), SHAPES)
def test_plain_operations_do_what_numpy_does(rows: int, vocabulary: int) -> None:
    logits, words = drawn(rows, vocabulary)
    left = masked_by_operations(mx.array(logits), words)
    assert left.dtype == mx.float32
    assert np.array_equal(np.array(left), expected(logits, words))


@pytest.mark.skipif(not device.on_metal(), reason="the kernel needs Metal, which this machine does not have")
@pytest.mark.parametrize(("rows", "vocabulary"), SHAPES)
def test_the_kernel_does_what_plain_operations_do(rows: int, vocabulary: int) -> None:
    logits, words = drawn(rows, vocabulary)
    given = mx.array(logits)
    for each in (given, given * 1, mx.concatenate([given, given])[rows:]):  # as it lies, computed, and a part of more
        left = masked_by_kernel(each, words)
        assert left.dtype == mx.float32
        assert np.array_equal(np.array(left), np.array(masked_by_operations(each, words)))


def read_as_the_kernel_does(logits: mx.array, mask: mx.array) -> mx.array:
    """What the kernel writes, as its source says it: words are int32, and what lies behind the last allows nothing."""
    data, words = np.array(logits), np.array(mask)
    element = np.arange(data.shape[1])
    held = element // 32 < words.shape[1]
    bits = (words[:, np.minimum(element // 32, words.shape[1] - 1)] >> (element % 32)) & 1
    return mx.array(np.where(held & bits.astype(bool), data, np.float32(-math.inf)))


@pytest.mark.parametrize(("rows", "vocabulary"), SHAPES)
def test_the_kernel_is_given_what_it_asks_for(rows: int, vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Metal too: its checks of shapes and types run, and its reading of the words is what ours is."""
    monkeypatch.setattr(llguidance.mlx, "apply_token_bitmask_kernel", read_as_the_kernel_does)
    logits, words = drawn(rows, vocabulary)
    left = np.array(masked_by_kernel(mx.array(logits), words))
    assert np.array_equal(left, expected(logits, words))


@pytest.mark.parametrize("metal", [False, True])
def test_the_kernel_is_used_where_there_is_metal_and_nowhere_else(metal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[int]] = []

    def kernel(logits: mx.array, mask: mx.array) -> mx.array:
        asked.append(mask.shape)
        return read_as_the_kernel_does(logits, mask)

    monkeypatch.setattr(device, "on_metal", lambda: metal)
    monkeypatch.setattr(llguidance.mlx, "apply_token_bitmask_kernel", kernel)
    left = masked(mx.zeros((2, 70)), [np.array([1], dtype=np.uint32), np.array([0, 0, 32, 7], dtype=np.uint32)])
    assert [np.flatnonzero(np.isfinite(row)).tolist() for row in np.array(left)] == [[0], [69]]
    assert asked == ([(2, 3)] if metal else [])

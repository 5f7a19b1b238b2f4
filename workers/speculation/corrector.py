"""What a head's guess at a hidden state becomes before it guesses from it again: nearer to the true one.

Recursive guesses drift from the model's hidden states; how they do so on average is measured, and taken back. It
changes what is drafted only. Per depth: an affine map (C0 of all channels at once, C1 of each), a step of low rank
behind it (C2), or both.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Literal, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from pomona.runtime.wire import Section

Kind = Literal["c0", "c1", "c2", "c1+c2"]
Array = npt.NDArray[np.float32]
FORMAT = 1


class CorrectorError(ValueError):
    """A corrector's file cannot be used; the text is one line that says why and names the mend."""


class Correction(NamedTuple):
    """h -> a + ((a - mean) in_proj) out_proj with a = h scale + bias, of hidden states [..., hidden]."""

    scale: Array
    """[1] or [hidden]; so is `bias`."""
    bias: Array
    mean: Array
    """[hidden]."""
    in_proj: Array
    """[hidden, rank]; rank 0 leaves the step out."""
    out_proj: Array
    """[rank, hidden]."""

    def blended(self, share: float) -> "Correction":
        """So much of it, 0 to 1; 0 changes nothing."""
        return self._replace(
            scale=1 + np.float32(share) * (self.scale - 1),
            bias=np.float32(share) * self.bias,
            out_proj=np.float32(share) * self.out_proj,
        )

    @property
    def finite(self) -> bool:
        return all(bool(np.isfinite(array).all()) for array in self)


def identity(size: int) -> Correction:
    """Changes nothing."""
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    mean = np.zeros(size, np.float32)
    return Correction(one, zero, mean, np.zeros((size, 0), np.float32), np.zeros((0, size), np.float32))


class Account(Section):
    """What a corrector is for, and what it was measured to do."""

    kind: Kind
    hidden: Literal["pre", "post"]
    """The hidden states that it corrects: in front of the model's final norm, or behind it."""
    size: int
    """Channels of a hidden state."""
    rank: int
    blend: float
    before: tuple[float, ...]
    """Share of drafts at each depth, of those whose predecessors were right, that were right without it."""
    after: tuple[float, ...]
    """The same with it, on the same texts, which it was not fitted on."""
    format: int = FORMAT


def accepted_drafts(shares: Sequence[float]) -> float:
    """Drafts of a round that are accepted on average, from the share of each depth."""
    return math.fsum(accumulate(shares, mul))


class Corrector:
    """Corrections of the first depths; depth 1 is of the guess that the second draft is made from."""

    def __init__(self, corrections: Sequence[Correction], account: Account) -> None:
        self.corrections = tuple(corrections)
        self.account = account
        self._cast: dict[mx.Dtype, list[list[mx.array]]] = {}

    @property
    def depths(self) -> int:
        return len(self.corrections)

    @property
    def pays(self) -> bool:
        """Whether more drafts were right with it than without."""
        return accepted_drafts(self.account.after) > accepted_drafts(self.account.before)

    def check(self, size: int, hidden: str) -> None:
        """Raises CorrectorError unless it is for hidden states of so many channels and of this kind."""
        if self.account.size != size:
            raise CorrectorError(
                f"the corrector is for hidden states of {self.account.size} channels, the model's have {size}; fit anew"
            )
        if self.account.hidden != hidden:
            raise CorrectorError(
                f"the corrector is for {self.account.hidden}-norm hidden states, the head takes {hidden}-norm ones; "
                "fit anew"
            )

    def __call__(self, hidden: mx.array, depth: int) -> mx.array:
        """Hidden states [..., hidden] as guessed at `depth`, corrected. Raises ValueError for one beyond its own."""
        if not 1 <= depth <= self.depths:
            raise ValueError(f"depth {depth} is not one of the corrector's 1 to {self.depths}")
        scale, bias, mean, in_proj, out_proj = self._arrays(hidden.dtype)[depth - 1]
        affine = hidden * scale + bias
        return affine + ((affine - mean) @ in_proj) @ out_proj if in_proj.shape[1] else affine

    def _arrays(self, dtype: mx.Dtype) -> list[list[mx.array]]:
        if dtype not in self._cast:
            self._cast[dtype] = [[mx.array(array).astype(dtype) for array in each] for each in self.corrections]
        return self._cast[dtype]

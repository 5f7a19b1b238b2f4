"""What decides the token of one row at one position; two rows of a batch share none of it."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pomona.workers.messages import Sampling


class Adjustment(NamedTuple):
    """What a row does to raw logits, as aligned lists: token ids, divisors for repeated ones, amounts to add."""

    tokens: list[int]
    repetition: list[float]
    add: list[float]


class Drafted(NamedTuple):
    """A token that was drawn from a distribution of its own, before this position's was known."""

    token: int
    row: int
    """Which of the draw's `distributions` it was drawn from."""


class RowLaw(NamedTuple):
    """How one row draws its token at `position`, the number of output tokens before it."""

    sampling: Sampling
    position: int
    adjustment: Adjustment | None
    logprobs: int | None
    mask: npt.NDArray[np.uint32] | None = None
    """One bit a token, bit `t % 32` of word `t // 32`: 1 allows it. Tokens beyond the last word are not allowed."""
    drafted: Drafted | None = None
    """Verify this draft: the token is the draft or a draw of the residual. None for a plain draw."""
    spared: tuple[int, ...] = ()
    """Tokens that XTC never leaves out, such as the newline and the ends of a sequence."""

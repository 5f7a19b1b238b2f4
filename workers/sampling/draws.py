"""What a step drew, still on its way out of the device, and what was wrong with the logits of a row that failed."""

from typing import NamedTuple

import mlx.core as mx


class Fault(NamedTuple):
    """Why a row's token means nothing."""

    nan: int
    """Logits that are no number."""
    inf: int
    """Logits that are +inf; -inf is a token that the model rules out, which is legal."""
    vocabulary: int
    draft: bool
    """The draft had no chance in the distribution that it is said to be drawn from, or that held no numbers."""

    def __str__(self) -> str:
        if self.nan or self.inf:
            return f"{self.nan} NaN and {self.inf} inf among {self.vocabulary} logits"
        if self.draft:
            return "a draft that its own distribution cannot have given"
        return f"0 NaN and 0 inf among {self.vocabulary} logits, but no finite one is left to draw from"


class Draws(NamedTuple):
    """Arrays of one step, not evaluated yet."""

    tokens: mx.array
    """int32 [rows]."""
    finite: mx.array
    """bool [rows]: false where the token means nothing; `fault` tells why."""
    chosen: mx.array | None
    """float32 [rows]: log-probability of the token in the raw distribution; None if no row asks."""
    top_tokens: mx.array | None
    """int32 [rows, widest], most probable first."""
    top_logprobs: mx.array | None
    logits: mx.array
    """[rows, vocabulary] as the model gave them, kept for `fault`."""
    drafts: mx.array | None = None
    """bool [rows]: false where a draft cannot come from its distribution; None where nothing drafted was verified."""

    def fault(self, row: int) -> Fault:
        """What is wrong with a row that is not finite; waits for the device."""
        logits = self.logits[row]
        counts: list[int] = mx.stack([mx.isnan(logits).sum(), mx.isposinf(logits).sum()]).tolist()  # type: ignore[assignment]
        return Fault(
            nan=counts[0],
            inf=counts[1],
            vocabulary=logits.shape[-1],
            draft=self.drafts is not None and not self.drafts[row].item(),
        )

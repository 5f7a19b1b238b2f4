"""What a prefill forward costs on this machine: a fixed part, one for each token, and one for what lies before it."""

from dataclasses import dataclass

KEPT = 0.7
"""Share that the mean of a size keeps at each newer forward of that size."""
FADING, FAINTEST = 0.95, 0.1
"""A size's weight fades by the first at each forward of another size, and never below the second."""
DEEP = 256
"""Tokens before a forward from which on attention to them is told apart."""
KEPT_DEEP = 0.5
"""Share that the mean cost of attention keeps at each newer deep forward; prompts deepen from chunk to chunk."""


@dataclass(slots=True)
class _Size:
    """Forwards of about one size: means of their tokens and seconds."""

    tokens: float
    seconds: float
    weight: float = 1.0


class PrefillCost:
    """A line through what forwards of different sizes took lately, seconds over tokens.

    A chunk reads all weights whatever its size, so tokens per second alone would call small chunks slow, cut them
    smaller and find them slower still. Sizes within a factor of two are one point of the line, so that a thousand
    forwards of one size do not make the others forgotten. What deep forwards take beyond the line is put down to
    attention, which grows with the tokens that lie before each new one.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._pair: float | None = None
        """Seconds for one token to attend to one that lies before the forward."""

    def observe(self, tokens: int, seconds: float, depth: int = 0) -> None:
        """One forward of `tokens` tokens, padding included, behind `depth` earlier ones took `seconds`."""
        if depth >= DEEP and self._sizes:
            fixed, slope = self.line()
            pair = max(0.0, seconds - fixed - slope * tokens) / (tokens * depth)
            self._pair = pair if self._pair is None else KEPT_DEEP * self._pair + (1 - KEPT_DEEP) * pair
            return
        for size in self._sizes.values():
            size.weight = max(FAINTEST, FADING * size.weight)
        known = self._sizes.setdefault(tokens.bit_length(), _Size(tokens, seconds))
        known.tokens = KEPT * known.tokens + (1 - KEPT) * tokens
        known.seconds = KEPT * known.seconds + (1 - KEPT) * seconds
        known.weight = 1.0

    def line(self) -> tuple[float, float]:
        """Seconds of a forward, and seconds for each token; the first is 0 where sizes hardly differed."""
        sizes = self._sizes.values()
        if not sizes:
            return 0.0, 0.01
        total = sum(size.weight for size in sizes)
        tokens = sum(size.weight * size.tokens for size in sizes) / total
        seconds = sum(size.weight * size.seconds for size in sizes) / total
        spread = sum(size.weight * (size.tokens - tokens) ** 2 for size in sizes)
        if spread > 0:
            shared = sum(size.weight * (size.tokens - tokens) * (size.seconds - seconds) for size in sizes)
            slope = shared / spread
            fixed = seconds - slope * tokens
            if slope > 0 and fixed > 0:
                return fixed, slope
        return 0.0, max(seconds / tokens, 1e-9)

    def tokens_within(self, seconds: float, depth: int = 0) -> int:
        """Tokens that a forward of at most `seconds` computes behind `depth` earlier ones; may be 0."""
        fixed, slope = self.line()
        return max(0, int((seconds - fixed) / (slope + (self._pair or 0.0) * depth)))

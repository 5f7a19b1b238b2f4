"""What a prefill forward costs on this machine: a fixed part, and a part for each token."""

FORGET = 0.9
"""Weight that an observation keeps at each newer one."""


class PrefillCost:
    """A line through the last observations, seconds over tokens; recent ones weigh more.

    A chunk reads all weights whatever its size, so tokens per second alone would call small chunks slow, cut them
    smaller and find them slower still.
    """

    def __init__(self) -> None:
        self._weight = self._n = self._t = self._nn = self._nt = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """One forward of `tokens` tokens, padding included, took `seconds`."""
        self._weight = FORGET * self._weight + 1
        self._n = FORGET * self._n + tokens
        self._t = FORGET * self._t + seconds
        self._nn = FORGET * self._nn + tokens * tokens
        self._nt = FORGET * self._nt + tokens * seconds

    def line(self) -> tuple[float, float]:
        """Seconds of a forward, and seconds for each token; the first is 0 where sizes hardly differed."""
        if not self._n:
            return 0.0, 0.01
        spread = self._nn - self._n * self._n / self._weight
        if spread > 0.01 * self._nn:
            slope = (self._nt - self._n * self._t / self._weight) / spread
            fixed = (self._t - slope * self._n) / self._weight
            if slope > 0 and fixed > 0:
                return fixed, slope
        return 0.0, max(self._t / self._n, 1e-9)

    def tokens_within(self, seconds: float) -> int:
        """Tokens that a forward of at most `seconds` computes; may be 0."""
        fixed, slope = self.line()
        return max(0, int((seconds - fixed) / slope))

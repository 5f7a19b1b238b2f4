"""What one request's KV takes in memory, as a value that travels: the scheduler reserves by it."""

from pomona.runtime.wire import Part

STEP = 256
"""Tokens by which buffers grow: what a row has begun of them counts whole."""


class KVWindow(Part):
    """Layers that look back only so far."""

    tokens: int
    """The most that is kept of a row."""
    bytes_per_token: int
    """Over all layers with this window."""


class KVCost(Part, kw_only=True):
    """The layers of a model by how their KV grows; all zero where nothing is known, and then nothing is bounded."""

    fixed: int = 0
    """Bytes a row, whatever its length: recurrent state."""
    per_token: int = 0
    """Bytes a token, over all layers that keep every token."""
    windows: tuple[KVWindow, ...] = ()

    def bytes_for(self, tokens: int) -> int:
        """Bytes of one row of `tokens` tokens; it never falls as the tokens rise."""
        buffered = -(-tokens // STEP) * STEP
        bounded = sum(min(buffered, window.tokens) * window.bytes_per_token for window in self.windows)
        return self.fixed + buffered * self.per_token + bounded

    def tokens_within(self, budget: int, most: int) -> int:
        """The longest row within `budget` bytes, up to `most` tokens; 0 if not even a short one fits."""
        if self.bytes_for(most) <= budget:
            return most
        steps = range(most // STEP + 1)
        return STEP * max((step for step in steps if self.bytes_for(step * STEP) <= budget), default=0)

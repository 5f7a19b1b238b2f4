"""How fast requests end, to tell a refused client when to come back."""

import math
from collections import deque

WINDOW_S = 60.0
MAX_RETRY_S = 120


class CompletionRate:
    """Requests that ended within the last minute."""

    def __init__(self) -> None:
        self._ended: deque[float] = deque()

    def note(self, now: float) -> None:
        """A request ended at `now`, and with it its place in a worker."""
        self._ended.append(now)
        self._forget(now)

    def retry_after_s(self, waiting: int, now: float) -> int:
        """Whole seconds, 1 to 120, until `waiting` requests will have ended at the present rate."""
        self._forget(now)
        if not self._ended:
            return MAX_RETRY_S if waiting else 1
        span = max(now - self._ended[0], 1.0)
        return max(1, min(MAX_RETRY_S, math.ceil(waiting * span / len(self._ended))))

    def _forget(self, now: float) -> None:
        while self._ended and now - self._ended[0] > WINDOW_S:
            self._ended.popleft()

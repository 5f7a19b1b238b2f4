"""Who of the clients goes first: virtual token counters, one for each client label.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a client's counter grows with the service
it gets, the smallest counter goes first, and a client that comes back starts no lower than those that are being served,
so that idleness saves nothing up.
"""

from collections import Counter

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
MAX_REMEMBERED = 4096
"""Counters of clients without a request that are kept; the oldest are forgotten first."""


class Shares:
    """The service that each client got, in weighted tokens."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._active: Counter[str] = Counter()

    def used(self, client: str) -> float:
        return self._used.get(client, 0.0)

    def requests_of(self, client: str) -> int:
        """Requests of the client that were admitted and have not ended."""
        return self._active.get(client, 0)

    def join(self, client: str) -> None:
        """A request of this client was admitted."""
        if client not in self._active:
            floor = min((self._used[other] for other in self._active), default=0.0)
            self._used[client] = max(self._used.pop(client, 0.0), floor)
        self._active[client] += 1

    def leave(self, client: str) -> None:
        """A request of this client ended."""
        self._active[client] -= 1
        if not self._active[client]:
            del self._active[client]
        if not self._active:
            self._used.clear()
        elif len(self._used) - len(self._active) > MAX_REMEMBERED:
            del self._used[next(name for name in self._used if name not in self._active)]

    def charge(self, client: str, *, prompt: int = 0, output: int = 0) -> None:
        """Tokens of service given to a client with a request."""
        self._used[client] += PROMPT_WEIGHT * prompt + OUTPUT_WEIGHT * output

"""Whether the tier writes: switched off by trouble with one warning, tried again at growing intervals."""

import logging

log = logging.getLogger(__name__)

FIRST_RETRY_S = 5.0
LAST_RETRY_S = 60.0


class Switch:
    """On at first. All times are seconds on one clock."""

    def __init__(self) -> None:
        self.reason = ""
        """Why the tier is off; empty while it is on."""
        self.needs = 0
        """Bytes of the largest write that failed since the tier went off."""
        self._retry_s = FIRST_RETRY_S
        self._retry_at = 0.0
        self._on_at = float("-inf")

    def off(self, reason: str, now: float, needs: int = 0) -> None:
        if not self.reason:
            if now - self._on_at > LAST_RETRY_S:
                self._retry_s = FIRST_RETRY_S  # else it never was well, and the intervals go on growing
            self._retry_at = now + self._retry_s
            log.warning("tier-off reason=%r retry_s=%g", reason, self._retry_s)
        self.reason = reason
        self.needs = max(self.needs, needs)

    def due(self, now: float) -> bool:
        """True if the tier is off and it is time to look again; the next time is set."""
        if not self.reason or now < self._retry_at:
            return False
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)
        self._retry_at = now + self._retry_s
        return True

    def on(self, now: float) -> None:
        self.reason, self.needs, self._on_at = "", 0, now
        log.warning("tier-on")

"""When a dead actor starts again, and when the supervisor gives up on it. Pure: the time is passed in."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """All in seconds, except `max_deaths`."""

    first_s: float = 0.1
    """Delay before the first restart; each further death in a row doubles it."""
    longest_s: float = 30.0
    settled_s: float = 60.0
    """An actor that was ready for so long starts again with a clean record."""
    max_deaths: int = 5
    """So many deaths within `window_s` are a loop, which no restart will mend."""
    window_s: float = 60.0


@dataclass(frozen=True, slots=True)
class RestartRecord:
    """The deaths of one actor that still count."""

    policy: RestartPolicy = RestartPolicy()
    streak: int = 0
    """Deaths since the actor was last settled."""
    recent: tuple[float, ...] = ()
    """Times of the deaths within the window, oldest first."""

    def died(self, now: float, ready_at: float | None) -> "RestartRecord":
        """The record after a death at `now`; `ready_at` is when the actor became ready, None if it never did."""
        settled = ready_at is not None and now - ready_at >= self.policy.settled_s
        recent = tuple(death for death in self.recent if now - death < self.policy.window_s)
        return replace(self, streak=1 if settled else self.streak + 1, recent=(*recent, now))

    @property
    def looping(self) -> bool:
        return len(self.recent) >= self.policy.max_deaths

    @property
    def delay_s(self) -> float:
        """Seconds to wait before the next start; 0 if the actor never died."""
        if self.streak == 0:
            return 0.0
        doublings = min(self.streak - 1, 64)
        return min(self.policy.longest_s, self.policy.first_s * 2.0**doublings)

"""Who of the workers uses the device they share, and for how long: turns of a slice each, only while several have work.

A worker that is the only one with work has a free turn: it runs for as long as it likes and never waits for a message,
and it keeps the turn while it is idle. Once others have work too, the free turn is taken back and the worker that got
least goes next, for one slice. What each got is a virtual time as in `shares.py`: a slice that a long step overran is
charged in full, and who comes back from idleness starts no lower than those with work, so that idleness saves nothing
up. Time that a worker had to itself is not charged.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pomona.runtime.mailbox import Peer
from pomona.workers.messages import FREE_TURN, EndTurn, Turn

Order = tuple[Peer, Turn | EndTurn]


@dataclass(slots=True, eq=False)
class Share:
    """One worker's part in the device."""

    peer: Peer
    weight: float
    turn: int | None = FREE_TURN
    """The turn that it has; a worker begins with a free one."""
    has_work: bool = False
    used: float = 0.0
    """Virtual time: seconds of its slices, divided by its weight."""
    last: int = FREE_TURN
    """Rises with each time that the device became its own: of two that got the same, the lower goes first."""


class Turns:
    """The turns of one device. Of its workers with work, one at most has a turn."""

    def __init__(self, slice_s: float) -> None:
        self._slice_s = slice_s
        self._shares: dict[Peer, Share] = {}
        self._running: Share | None = None
        """Who has work and the turn, or has yet to give it back."""
        self._granted_at = 0.0
        self._charged_from = 0.0
        """Of a free turn, what counts is the time since others wait for its end."""
        self._due: float | None = None
        """When the running turn was to end, but for the step that is under way; None: a free turn."""
        self._number = FREE_TURN

    # what happens

    def add(self, peer: Peer, weight: float = 1.0) -> None:
        """A worker is there; it has no work, and the free turn that each begins with."""
        self._shares[peer] = Share(peer, weight)

    def gone(self, peer: Peer) -> None:
        """It is no more, nor is its turn."""
        share = self._shares.pop(peer)
        self._settle()
        if share is self._running:
            self._running = None

    def has_work(self, peer: Peer) -> None:
        """It got a request. `decide` is asked before the worker hears of it, which may have to lose its turn first."""
        share = self._shares[peer]
        if not share.has_work:
            floor = min((other.used for other in self._busy()), default=0.0)
            share.used, share.has_work = max(share.used, floor), True

    def idle(self, peer: Peer) -> None:
        """It holds no request any more; a turn of a slice, or one that was taken back, it has yet to end."""
        share = self._shares[peer]
        share.has_work = False
        self._settle()
        if share is self._running and self._due is None:
            self._running = None

    def ended(self, peer: Peer, number: int, seconds: float, now: float) -> None:
        """It gave a turn back after using so many seconds of it."""
        share = self._running
        if share is None or share.peer != peer or share.turn != number or self._due is None:
            return  # of a turn that was replaced meanwhile
        share.used += min(seconds, now - self._charged_from) / share.weight
        share.turn, self._running = None, None

    # what follows

    def decide(self, now: float) -> tuple[Order, ...]:
        """What has to be said at `now`, in order; saying it is taken for granted."""
        return tuple(self._orders(now))

    def _orders(self, now: float) -> Iterator[Order]:
        busy = list(self._busy())
        if self._running is None and busy:
            yield from self._grant(min(busy, key=lambda share: (share.used, share.last)), now, alone=len(busy) == 1)
        for share in busy:
            if share is not self._running and share.turn is not None:
                yield share.peer, EndTurn(share.turn)
                share.turn = None
        if self._running is not None and self._due is None and len(busy) > 1:
            yield from self._take_back(self._running, now)

    def _grant(self, share: Share, now: float, *, alone: bool) -> Iterator[Order]:
        self._running, self._granted_at, self._charged_from = share, now, now
        self._due = None if alone else now + self._slice_s
        self._number += 1
        share.last = self._number
        if not alone or share.turn is None:
            share.turn = self._number
            yield share.peer, Turn(self._number, None if alone else self._slice_s)

    def _take_back(self, share: Share, now: float) -> Iterator[Order]:
        if share.turn is not None:
            self._charged_from = self._due = now
            yield share.peer, EndTurn(share.turn)

    # what is the case

    def silent_since(self, peer: Peer, progressed: float) -> float | None:
        """Since when others, or its own requests, wait for a word of a worker whose last progress was at `progressed`.

        None while it waits for its turn, or has nothing to do: then it need not say one.
        """
        share = self._shares[peer]
        if share is not self._running:
            return progressed if share.has_work and self._running is None else None
        since = max(progressed, self._granted_at) if share.has_work else self._granted_at
        return since if self._due is None else min(since, self._due)

    def _busy(self) -> Iterator[Share]:
        return (share for share in self._shares.values() if share.has_work)

    def _settle(self) -> None:
        """Where nobody has work, nobody is owed anything."""
        if not any(self._busy()):
            for share in self._shares.values():
                share.used = 0.0

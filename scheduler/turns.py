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

PATIENCE_S = 2.0
"""Seconds that a turn may be overrun before the others go on beside it: a worker that hangs does not stop them all."""


@dataclass(slots=True, eq=False)
class Share:
    """One worker's part in the device."""

    peer: Peer
    weight: float
    turn: int | None = FREE_TURN
    """The turn that it has; a worker begins with a free one."""
    due: float | None = None
    """When this turn is to end, but for the step that is under way; None: it is a free one."""
    overdue: bool = False
    """It did not end its turn, and the others went on."""
    has_work: bool = False
    granted_at: float = 0.0
    charged_from: float = 0.0
    """Of a free turn, what counts is the time since others wait for its end."""
    used: float = 0.0
    """Virtual time: seconds of its slices, divided by its weight."""
    last: int = FREE_TURN
    """Rises with each time that the device became its own: of two that got the same, the lower goes first."""


class Turns:
    """The turns of one device. Of its workers with work, one has a turn, and those whose turn is overdue."""

    def __init__(self, slice_s: float) -> None:
        self._slice_s = slice_s
        self._shares: dict[Peer, Share] = {}
        self._running: Share | None = None
        """Who has work and the turn, or has yet to give it back."""
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
        if share is self._running and share.due is None:
            self._running = None

    def ended(self, peer: Peer, number: int, seconds: float, now: float) -> None:
        """It gave a turn back after using so many seconds of it."""
        share = self._shares[peer]
        if share.turn != number:
            return  # of a turn that was replaced meanwhile
        share.used += min(seconds, now - share.charged_from) / share.weight
        share.turn, share.due, share.overdue = None, None, False
        if share is self._running:
            self._running = None

    # what follows

    def decide(self, now: float) -> tuple[Order, ...]:
        """What has to be said at `now`, in order; saying it is taken for granted."""
        if (deadline := self.deadline()) is not None and self._running is not None and now >= deadline:
            self._running.overdue, self._running = True, None
        return tuple(self._orders(now))

    def deadline(self) -> float | None:
        """When `decide` has something new to say though nothing happened; None: never."""
        if self._running is None or self._running.due is None:
            return None
        return self._running.due + PATIENCE_S

    def _orders(self, now: float) -> Iterator[Order]:
        busy = list(self._busy())
        able = [share for share in busy if not share.overdue]
        if self._running is None and able:
            yield from self._grant(min(able, key=lambda share: (share.used, share.last)), now, alone=len(busy) == 1)
        for share in able:
            if share is not self._running and share.turn is not None:
                yield share.peer, EndTurn(share.turn)
                share.turn = None
        if self._running is not None and len(busy) > 1:
            yield from self._take_back(self._running, now)

    def _grant(self, share: Share, now: float, *, alone: bool) -> Iterator[Order]:
        self._running = share
        self._number += 1
        share.last, share.granted_at, share.charged_from = self._number, now, now
        share.due = None if alone else now + self._slice_s
        if not alone or share.turn is None:
            share.turn = self._number
            yield share.peer, Turn(self._number, None if alone else self._slice_s)

    def _take_back(self, share: Share, now: float) -> Iterator[Order]:
        """Nothing, unless it is a free turn."""
        if share.due is None and share.turn is not None:
            share.charged_from = share.due = now
            yield share.peer, EndTurn(share.turn)

    # what is the case

    def silent_since(self, peer: Peer, progressed: float) -> float | None:
        """Since when others, or its own requests, wait for a word of a worker whose last progress was at `progressed`.

        None while it waits for its turn, or has nothing to do: then it need not say one.
        """
        share = self._shares[peer]
        if share is not self._running and not share.overdue:
            return progressed if share.has_work and share.turn is not None else None
        since = max(progressed, share.granted_at) if share.has_work else share.granted_at
        return since if share.due is None else min(since, share.due)

    def _busy(self) -> Iterator[Share]:
        return (share for share in self._shares.values() if share.has_work)

    def _settle(self) -> None:
        """Where nobody has work, nobody is owed anything."""
        if not any(self._busy()):
            for share in self._shares.values():
                share.used = 0.0

"""The turn that a worker has on the device it shares with other workers, and how much of it is used."""

from pomona.workers.messages import FREE_TURN, EndTurn, Turn, TurnEnded


class OwnTurn:
    """Told of each turn and each second of work, it says whether a step may be made and when to give the turn back."""

    def __init__(self) -> None:
        self.ended = 0
        """Turns given back."""
        self.seconds = 0.0
        """Used in all."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """A fresh link to a scheduler: the worker has a free turn."""
        self.take(Turn(FREE_TURN, None))

    def take(self, turn: Turn) -> None:
        self._turn: Turn | None = turn
        self._used = 0.0
        self._recalled = False

    def recall(self, order: EndTurn) -> None:
        """Nothing, if it is not of the turn that the worker has."""
        if self._turn is not None and self._turn.number == order.number:
            self._recalled = True

    def use(self, seconds: float) -> None:
        """Seconds of a step, or of waiting for what a step launched."""
        self.seconds += seconds
        self._used += seconds

    @property
    def may_step(self) -> bool:
        return self._turn is not None and not self._recalled

    def is_over(self, *, busy: bool) -> bool:
        """It has to be given back: it was taken back or used up, or there is no work for what is left of it."""
        if self._turn is None:
            return False
        limit = self._turn.seconds
        return self._recalled or (limit is not None and (self._used >= limit or not busy))

    def end(self) -> TurnEnded:
        """Give it back. Raises RuntimeError without a turn."""
        if self._turn is None:
            raise RuntimeError("a turn is given back that the worker does not have")
        number, self._turn = self._turn.number, None
        self.ended += 1
        return TurnEnded(number, self._used)

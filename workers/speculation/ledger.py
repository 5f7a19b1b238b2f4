"""What drafting has won and lost against plain decoding, in seconds: the bound on how much slower it may make."""

SHARE = 0.02
"""Of all time, that drafting may have cost in the end."""
AT_FIRST, AT_MOST = 2.0, 8.0
"""Plain steps that may be lost at once: before anything was won, and however much was."""


class Ledger:
    """Seconds won, less seconds lost, plus a share of the time that passes: what the next round may lose at worst.

    It knows what rounds took and what they committed, not what anybody expected of them: wrong estimates can lose what
    it allows and no more.
    """

    def __init__(self) -> None:
        self._balance: float | None = None
        self._plain = 0.0

    def affords(self, seconds: float) -> bool:
        """Whether a round may take so much longer than a plain one, and be in vain."""
        return self._balance is not None and self._balance >= seconds

    def passed(self, seconds: float, plain: float) -> None:
        """A step took `seconds`; a plain one would take `plain`."""
        self._plain = plain
        if self._balance is None:
            self._balance = AT_FIRST * plain
        self._add(SHARE * seconds)

    def lost(self, seconds: float) -> None:
        """More than plain decoding would have taken."""
        self._add(-seconds)

    def won(self, seconds: float) -> None:
        """What plain decoding would have taken for tokens that came without a step of theirs."""
        self._add(seconds)

    def _add(self, seconds: float) -> None:
        if self._balance is not None:  # before any step there is nothing to compare with
            self._balance = min(self._balance + seconds, AT_MOST * self._plain)

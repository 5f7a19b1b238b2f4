"""Whether a text goes in circles: a pure function of its tokens, kept up with one token at a time."""

from copy import copy

LONGEST = 64
"""Tokens of the longest circle that is looked for."""
SHORT = 8
SHORT_SPAN = 128
"""Tokens that circles of up to `SHORT` go on for, before they count."""
LONG_SPAN = 1024
"""Tokens of longer ones: lists and tables repeat themselves for a while."""


class Loops:
    def __init__(self) -> None:
        self._recent: list[int] = []
        self._runs = [0] * LONGEST
        """For each period, tokens in a row that are what was written one period before."""
        self.found = False

    def fork(self) -> "Loops":
        other = copy(self)
        other._recent, other._runs = self._recent[-LONGEST:], list(self._runs)
        return other

    def push(self, token: int) -> None:
        recent, runs = self._recent, self._runs
        for period in range(1, min(LONGEST, len(recent)) + 1):
            if recent[-period] == token:
                runs[period - 1] += 1
                span = SHORT_SPAN if period <= SHORT else LONG_SPAN
                self.found = self.found or runs[period - 1] + period >= span
            else:
                runs[period - 1] = 0
        recent.append(token)
        if len(recent) > 4 * LONGEST:
            del recent[:-LONGEST]

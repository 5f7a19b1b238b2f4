"""What a forward of so many rows and so many tokens a row costs on this machine, measured and faded."""

from math import exp, log

SLOPE = 0.25
"""Guess before anything else is known: each time as many tokens again cost so many times the seconds more."""
SURE = 3
"""Forwards of a shape from which on their mean counts; before, their shortest: a first one may compile or allocate."""
CLIP = 0.5
"""Logarithm that one forward of a shape that is known may lie off; the rest is put down to a disturbance."""
OWN, COMMON = 0.03, 0.08
"""Least share of what a forward lies off that goes to its shape, and the share that goes to all shapes alike."""
KEPT = int(1 / OWN)
"""Forwards that a shape's mean remembers."""
HALF_LIFE = 512
"""Forwards of other shapes in which a shape's weight halves."""
DOUBT = 0.3
"""Share by which a shape may be cheaper than it is thought to be, where nothing lately spoke of it."""


class _Shape:
    """Forwards of one shape: their mean logarithm of seconds, without what the machine is slower or faster by."""

    __slots__ = ("at", "seconds", "seen", "weight")

    def __init__(self, seconds: float, at: int) -> None:
        self.seconds = seconds
        self.seen = 1
        self.weight = 1.0
        self.at = at

    def faded(self, at: int) -> float:
        return float(self.weight * 0.5 ** ((at - self.at) / HALF_LIFE))


class VerifyCost:
    """Seconds by shape: rows and tokens a row. A shape that was never seen is read from those that were.

    Contention, heat and longer KV slow all shapes alike, so each forward moves a level common to all, and only what is
    its own moves its shape: two widths keep their ratio while one alone is in use. The cost of an unknown shape is that
    of as many tokens in another, in proportion to what rows cost that have been seen.
    """

    def __init__(self) -> None:
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._level = 0.0
        self._forwards = 0
        self._curve: list[tuple[int, float]] | None = None

    def observe(self, rows: int, width: int, seconds: float) -> None:
        """One forward of `rows` rows with `width` tokens each took `seconds`; one that took no time says nothing."""
        if seconds <= 0:
            return
        self._forwards += 1
        self._curve = None
        shape = self._shapes.get((rows, width))
        own = log(seconds) - self._level
        if shape is None:
            self._shapes[rows, width] = _Shape(own, self._forwards)
            return
        off = own - shape.seconds
        if shape.seen < SURE:
            shape.seconds += min(0.0, off)
        else:
            off = max(-CLIP, min(CLIP, off))
            share = max(OWN, 1 / (1 + shape.faded(self._forwards)))
            shape.seconds += share * off
            self._level += COMMON * (1 - share) * off
        shape.seen += 1
        shape.weight = min(KEPT, shape.faded(self._forwards) + 1)
        shape.at = self._forwards

    def known(self, rows: int, width: int) -> bool:
        return (rows, width) in self._shapes

    def seconds(self, rows: int, width: int) -> float:
        """Of one forward; what is said before any was seen is right in proportion only."""
        shape = self._shapes.get((rows, width))
        if shape is not None:
            return exp(self._level + shape.seconds)
        tokens = rows * width
        near = [own for own in self._shapes if own[0] == rows]
        if not near:
            return self._of_tokens(tokens)
        own = min(near, key=lambda shape: abs(shape[1] - width))
        known = exp(self._level + self._shapes[own].seconds)
        return known * self._of_tokens(tokens) / self._of_tokens(rows * own[1])

    def least_seconds(self, rows: int, width: int) -> float:
        """What it may turn out to be: the less was seen of the shape, and the longer ago, the lower."""
        shape = self._shapes.get((rows, width))
        doubt = DOUBT if shape is None else DOUBT / (1 + shape.faded(self._forwards) / 2)
        return self.seconds(rows, width) * (1 - doubt)

    def _of_tokens(self, tokens: int) -> float:
        """Seconds of a forward of so many tokens in whatever shape: straight lines between those that were seen."""
        curve = self._curve or self._draw_curve()
        self._curve = curve
        least, first = curve[0]
        most, last = curve[-1]
        if tokens <= least:
            return exp(self._level) * first / (1 + SLOPE * (least / tokens - 1))
        if tokens >= most:
            return exp(self._level) * last * (1 + SLOPE * (tokens / most - 1))
        after = next(index for index, (known, _) in enumerate(curve) if known >= tokens)
        (low, short), (high, long) = curve[after - 1], curve[after]
        return exp(self._level) * (short + (long - short) * (tokens - low) / (high - low))

    def _draw_curve(self) -> list[tuple[int, float]]:
        by_tokens: dict[int, list[float]] = {}
        for (rows, width), shape in self._shapes.items():
            by_tokens.setdefault(rows * width, []).append(shape.seconds)
        return sorted((tokens, exp(sum(own) / len(own))) for tokens, own in by_tokens.items()) or [(1, 1.0)]

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
BELIEF = 0.25
"""Forwards of a shape that what is guessed of it from others counts for, so that what was seen long ago yields."""
REFRESH = 16
"""Forwards after which guesses are made anew."""
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
    """Seconds by shape: rows and tokens a row.

    Contention, heat and longer KV slow all shapes alike, so each forward moves a level common to all, and only what is
    its own moves its shape: two widths keep their ratio while one alone is in use. What was not seen of a shape, or
    long ago, is guessed from the nearest widths of as many rows, and from other rows with as many tokens in all.
    """

    def __init__(self) -> None:
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._level = 0.0
        self._scale = 1.0
        """What the level is the logarithm of."""
        self._forwards = 0
        self._estimates: dict[tuple[int, int], float] = {}
        """Seconds, without the scale."""

    def observe(self, rows: int, width: int, seconds: float) -> None:
        """One forward of `rows` rows with `width` tokens each took `seconds`; one that took no time says nothing."""
        if seconds <= 0:
            return
        self._forwards += 1
        self._estimates.pop((rows, width), None)
        shape = self._shapes.get((rows, width))
        if shape is None or shape.seen < SURE or self._forwards % REFRESH == 0:
            self._estimates.clear()
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
            self._scale = exp(self._level)
        shape.seen += 1
        shape.weight = min(KEPT, shape.faded(self._forwards) + 1)
        shape.at = self._forwards

    def known(self, rows: int, width: int) -> bool:
        return (rows, width) in self._shapes

    def seconds(self, rows: int, width: int) -> float:
        """Of one forward; what is said before any was seen is right in proportion only."""
        estimate = self._estimates.get((rows, width))
        if estimate is None:
            estimate = self._estimates[rows, width] = self._estimate(rows, width)
        return self._scale * estimate

    def least_seconds(self, rows: int, width: int) -> float:
        """What it may turn out to be: the less was seen of the shape, and the longer ago, the lower."""
        shape = self._shapes.get((rows, width))
        doubt = DOUBT if shape is None else DOUBT / (1 + shape.faded(self._forwards) / 2)
        return self.seconds(rows, width) * (1 - doubt)

    def _estimate(self, rows: int, width: int) -> float:
        shape = self._shapes.get((rows, width))
        guess = self._guess(rows, width)
        if shape is None or guess is None:
            return exp(shape.seconds) if shape is not None else guess or 1 + SLOPE * (rows * width - 1)
        weight = shape.faded(self._forwards)
        return exp((weight * shape.seconds + BELIEF * log(guess)) / (weight + BELIEF))

    def _guess(self, rows: int, width: int) -> float | None:
        """From all shapes but this one; None if there is none."""
        own = {other: shape.seconds for (count, other), shape in self._shapes.items() if count == rows}
        below = max((other for other in own if other < width), default=None)
        above = min((other for other in own if other > width), default=None)
        if below is not None and above is not None:
            return _between((below, exp(own[below])), (above, exp(own[above])), width)
        near = below if below is not None else above
        curve = self._curve(rows)
        if near is None:
            return _read(curve, rows * width) if curve else None
        curve = curve or [(rows * near, 1.0)]
        return exp(own[near]) * _read(curve, rows * width) / _read(curve, rows * near)

    def _curve(self, but: int) -> list[tuple[int, float]]:
        """Seconds by tokens in all, of other numbers of rows."""
        by_tokens: dict[int, list[float]] = {}
        for (rows, width), shape in self._shapes.items():
            if rows != but:
                by_tokens.setdefault(rows * width, []).append(shape.seconds)
        return sorted((tokens, exp(sum(own) / len(own))) for tokens, own in by_tokens.items())


def _read(curve: list[tuple[int, float]], tokens: int) -> float:
    """Straight lines between the points; beyond them, `SLOPE`."""
    (least, first), (most, last) = curve[0], curve[-1]
    if tokens <= least:
        return first / (1 + SLOPE * (least / tokens - 1))
    if tokens >= most:
        return last * (1 + SLOPE * (tokens / most - 1))
    after = next(index for index, (known, _) in enumerate(curve) if known >= tokens)
    return _between(curve[after - 1], curve[after], tokens)


def _between(low: tuple[int, float], high: tuple[int, float], at: int) -> float:
    return low[1] + (high[1] - low[1]) * (at - low[0]) / (high[0] - low[0])

"""A machine with known costs and rows with known acceptance, and the loop of an engine between them."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from statistics import harmonic_mean
from typing import NamedTuple, Protocol

from pomona.config import DEEPEST, Method
from pomona.workers.messages import RequestId
from pomona.workers.speculation.depth import Outlook

Cost = Callable[[int, int], float]
"""Seconds of a forward by rows and width."""

ALONE = {1: 1.0, 2: 1.24, 3: 1.31, 4: 2.03, 5: 2.23, 6: 2.23, 8: 2.62, 16: 4.21}
OF_FOUR = {1: 1.0, 2: 1.28, 3: 1.63, 4: 2.05, 5: 2.30}
OF_EIGHT = {1: 1.0, 2: 1.56, 3: 1.87, 4: 2.14, 5: 2.40}


def small_model_on_a_cpu(rows: int, width: int) -> float:
    """As a small model was measured with a CPU's matrix library, where the fourth row of a product doubles its cost."""
    plain, ratios = {1: (0.0635, ALONE), 4: (0.121, OF_FOUR), 8: (0.174, OF_EIGHT)}[rows]
    return plain * between(ratios, width)


def gpu(rows: int, width: int) -> float:
    """Nearly flat: reading the weights is the cost."""
    return 0.008 * (1 + 0.01 * rows) * (1 + 0.015 * (width - 1))


def steep(rows: int, width: int) -> float:
    """Each token costs as much as a step of its own: nothing can be won."""
    return 0.05 * rows * width


def between(points: dict[int, float], width: int) -> float:
    known = sorted(points)
    if width >= known[-1]:
        low, high = known[-2:]
    else:
        high = next(each for each in known[1:] if each >= width)
        low = known[known.index(high) - 1]
    return points[low] + (points[high] - points[low]) * (width - low) / (high - low)


class Chooser(Protocol):
    def choose(self, outlooks: Sequence[Outlook], rows: int) -> list[int]: ...
    def verified(self, rows: int, width: int, seconds: float, replay: float = 0.0) -> None: ...
    def proposed(self, method: Method, drafts: int, seconds: float) -> None: ...
    def tested(self, key: RequestId, method: Method, drafted: int, accepted: int) -> None: ...


class Fixed:
    """Always the same depth, where there are drafts."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def choose(self, outlooks: Sequence[Outlook], rows: int) -> list[int]:
        return [min(outlook.bound, self._depth) for outlook in outlooks]

    def verified(self, rows: int, width: int, seconds: float, replay: float = 0.0) -> None: ...
    def proposed(self, method: Method, drafts: int, seconds: float) -> None: ...
    def tested(self, key: RequestId, method: Method, drafted: int, accepted: int) -> None: ...


class Text:
    """What a row will say, fixed beforehand: whether the match at each position goes on, however it is decoded.

    `goes_on(position, length)` is the chance that a match of so many tokens predicts the next one, `begins(position)`
    that a match of two tokens begins where there is none.
    """

    method: Method = "ngram"
    each = 0.0

    def __init__(
        self, seed: int, goes_on: Callable[[int, int], float], begins: Callable[[int], float], key: str = ""
    ) -> None:
        self.key = RequestId(key or f"row-{seed}")
        self.position = self.length = 0
        self._random = Random(seed)
        self._drawn: list[tuple[float, float]] = []
        self._goes_on, self._begins = goes_on, begins

    def _at(self, position: int) -> tuple[float, float]:
        while len(self._drawn) <= position:
            self._drawn.append((self._random.random(), self._random.random()))
        return self._drawn[position]

    def outlook(self) -> Outlook:
        return Outlook(self.key, self.method, DEEPEST if self.length else 0, strength=self.length)

    def advance(self, drafts: int) -> int:
        """One round; the drafts that were accepted."""
        accepted = 0
        while self._step() and accepted < drafts:
            accepted += 1
        return accepted

    def _step(self) -> bool:
        drawn, begin = self._at(self.position)
        right = bool(self.length) and drawn < self._goes_on(self.position, self.length)
        if right:
            self.length += 1
        else:
            self.length = 2 if begin < self._begins(self.position) else 0
        self.position += 1
        return right


class Drafted(Text):
    """A row whose drafts a model makes: `chances[i]` is that of the draft at depth i + 1."""

    method: Method = "mtp"

    def __init__(self, seed: int, chances: Sequence[float], each: float, key: str = "") -> None:
        super().__init__(seed, lambda position, length: 0.0, lambda position: 0.0, key)
        self._chances, self.each = chances, each

    def outlook(self) -> Outlook:
        return Outlook(self.key, self.method, len(self._chances))

    def advance(self, drafts: int) -> int:
        accepted = 0
        for chance in self._chances[:drafts]:
            self.position += 1
            if self._at(self.position)[0] >= chance:
                return accepted
            accepted += 1
        self.position += 1
        return accepted


def copying(seed: int, chance: float = 0.95, found: float = 0.8) -> Text:
    return Text(seed, lambda position, length: chance, lambda position: found)


def chatting(seed: int) -> Text:
    """Matches are few and mostly chance, though a long one is rather more."""
    return Text(seed, lambda position, length: min(0.6, 0.1 + 0.06 * length), lambda position: 0.3)


class Result(NamedTuple):
    tokens: list[int]
    """Of each row."""
    seconds: float
    widths: list[int]
    """Of each round."""

    @property
    def rate(self) -> float:
        """Tokens per second of all rows, if each took the rows' mean time for a token."""
        return len(self.tokens) * harmonic_mean(self.tokens) / self.seconds


def run(
    policy: Chooser,
    texts: Sequence[Text],
    cost: Cost,
    rounds: int,
    *,
    replays: bool = False,
    noise: float = 0.0,
    seed: int = 0,
) -> Result:
    """`rounds` rounds of all rows; the costs wander by `noise` (of their logarithm), the mean is the table's."""
    random, rows = Random(seed), len(texts)
    tokens, seconds, widths = [0] * rows, 0.0, []
    for wander in _wandering(random, noise, rounds):
        outlooks = [text.outlook() for text in texts]
        depths = policy.choose(outlooks, rows)
        width = 1 + max(depths)
        took = cost(rows, width) * wander
        for method, each in {(text.method, text.each) for text, depth in zip(texts, depths, strict=True) if depth}:
            longest = max(depth for text, depth in zip(texts, depths, strict=True) if text.method == method)
            policy.proposed(method, longest, each * longest + 1e-5)
            took += each * longest
        accepted = [text.advance(depth) for text, depth in zip(texts, depths, strict=True)]
        refused = any(got < depth for got, depth in zip(accepted, depths, strict=True))
        replay = cost(rows, 1) if replays and refused else 0.0
        policy.verified(rows, width, cost(rows, width) * wander + replay, replay)
        for text, depth, got in zip(texts, depths, accepted, strict=True):
            if depth:
                policy.tested(text.key, text.method, depth, got)
        tokens = [own + 1 + more for own, more in zip(tokens, accepted, strict=True)]
        seconds += took + replay
        widths.append(width)
    return Result(tokens, seconds, widths)


def _wandering(random: Random, noise: float, rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        yield random.lognormvariate(-noise * noise / 2, noise) if noise else 1.0

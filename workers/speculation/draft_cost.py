"""What drafts cost beside the forward that verifies them: making them, and making good that they were refused."""

from collections.abc import Iterable, Mapping

from pomona.config import Method

GUESS = 0.1
"""Plain steps that one draft of a model costs, before any was made."""
SURE = 3
"""Measurements from which on a mean counts; before, the least of them: a first call may compile or allocate."""
SHARE, CLIP = 0.1, 2.0
"""Share of a newer measurement in the mean, and times the mean that it counts for at most."""


class _Mean:
    def __init__(self) -> None:
        self.value = 0.0
        self.seen = 0

    def add(self, value: float) -> None:
        if self.seen < SURE:
            self.value = value if not self.seen else min(self.value, value)
        else:
            self.value += SHARE * (min(value, CLIP * self.value) - self.value)
        self.seen += 1


class DraftCost:
    """Seconds for each draft, by method: a method that runs a model does it once for each draft of its longest row.

    Copies from prompt and answer, and what a grammar forces, are free: what they take depends on no depth.
    """

    def __init__(self) -> None:
        self._methods: dict[Method, _Mean] = {}
        self._replay = _Mean()

    def proposed(self, method: Method, drafts: int, seconds: float) -> None:
        if drafts > 0:
            self._methods.setdefault(method, _Mean()).add(seconds / drafts)

    def replayed(self, seconds: float) -> None:
        """After a round in which something was refused; 0 where that costs nothing."""
        if seconds > 0:
            self._replay.add(seconds)

    @property
    def replay(self) -> float:
        """Seconds after a round in which something is refused."""
        return self._replay.value

    def each(self, method: Method, plain: float) -> float:
        """Seconds for one draft; `plain`: of a plain step."""
        if method in ("ngram", "grammar"):
            return 0.0
        mean = self._methods.get(method)
        return GUESS * plain if mean is None else mean.value

    def none(self, methods: Iterable[Method], plain: float) -> bool:
        """Whether drafts of these methods cost nothing beside the forward."""
        return not self.replay and not any(self.each(method, plain) for method in methods)

    def seconds(self, depths: Mapping[Method, int], plain: float) -> float:
        """For a round in which each method drafts as deep as given."""
        return sum(depth * self.each(method, plain) for method, depth in depths.items())

"""What each request of a load asks for, drawn beforehand: the same seed gives the same requests. Pure."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice

from pomona.cli.bench.mixture import Mixture
from pomona.cli.bench.prompts import unique_prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    prompt: str
    max_tokens: int
    leaves_after: int | None = None
    """The client breaks the request off after so many deltas with text; None: it stays to the end."""


def asks(seed: str, requests: int, words: Mixture, max_tokens: Mixture, cancel: float = 0.0) -> Iterator[Ask]:
    """`requests` of them, no prompt twice; `cancel` (0..1) is the chance that a client leaves early.

    Prompts, lengths and cancels are drawn apart, so that changing one leaves the others as they were.
    """
    sizes, limits, leaving = (random.Random(f"{seed} {of}") for of in ("words", "tokens", "cancel"))
    drawn = iter(lambda: words.draw(sizes), None)
    for prompt in islice(unique_prompts(seed, drawn), requests):
        limit = max_tokens.draw(limits)
        leaves, after = leaving.random() < cancel, leaving.randint(1, max(1, limit - 1))
        yield Ask(prompt=prompt, max_tokens=limit, leaves_after=after if leaves else None)


def arrivals(seed: str, requests: int, rate: float) -> tuple[float, ...]:
    """Moments of a Poisson process of `rate` a second, in seconds from the start, ascending.

    Of all its courses, one in which `requests` arrive in the `requests / rate` seconds: exponential gaps, stretched to
    fill that time. A short load then really has the rate that it was set to.
    """
    draw = random.Random(f"{seed} arrivals")
    ends = list(accumulate(draw.expovariate(1.0) for _ in range(requests + 1)))
    stretch = requests / rate / ends[-1]
    return tuple(end * stretch for end in ends[:-1])

"""Prompts that no server has seen before: the same seed gives the same prompts, another seed shares none with it."""

import random
from collections.abc import Iterator

DRAWN_FROM = """
anchor basket candle desert eagle feather glacier harbor iron jacket kettle lantern meadow needle orchard pepper
quarry ribbon saddle timber umbrella valley willow yarn zebra apron bronze copper donkey elbow ferry granite
"""
WORDS = DRAWN_FROM.split()


def unique_prompts(seed: str, words: Iterator[int]) -> Iterator[str]:
    """One prompt for each number of `words`, of so many drawn words.

    A drawn 48-bit number stands first, so that two prompts share no beginning and no prefix cache can serve one from
    another; what the chat template puts before the prompt is still common to all.
    """
    draw = random.Random(seed)
    for number in words:
        mark = f"{draw.getrandbits(48):012x}"
        drawn = " ".join(draw.choice(WORDS) for _ in range(number))
        yield f"{mark}: tell a long and detailed story in which these words appear in order: {drawn}."

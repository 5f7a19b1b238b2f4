"""What speculation is measured on: answers that repeat their prompt, and free chat; greedy and sampled. Pure."""

import random
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice, repeat

from pomona.cli.bench.load import streamed
from pomona.cli.bench.prompts import WORDS, unique_prompts

TEMPERATURE = 0.8
"""Of sampled tasks."""
QUALITIES = "ancient broken frozen golden heavy hollow narrow purple quiet rusty silver simple velvet wooden yellow"
LINE_WORDS = 5
"""Of one line of a list."""
COPY = "Repeat this list exactly:\n\n"

Body = dict[str, object]
"""The JSON of a chat request, but for its model."""


class Task(StrEnum):
    COPY = "copy"
    """The answer is a list of the prompt."""
    COPY_SAMPLED = "copy-sampled"
    CHAT = "chat"
    """The answer shares little with the prompt."""
    CHAT_SAMPLED = "chat-sampled"

    @property
    def sampled(self) -> bool:
        return self in (Task.COPY_SAMPLED, Task.CHAT_SAMPLED)

    @property
    def copies(self) -> bool:
        return self in (Task.COPY, Task.COPY_SAMPLED)


def bodies(task: Task, width: int, seed: str, words: int, max_tokens: int) -> list[Body]:
    """`width` requests with prompts of about `words` words; a sampled one has a seed, so that it can be repeated."""
    draw = random.Random(f"{seed} seeds")
    prompts = copy_prompts(seed, words) if task.copies else unique_prompts(seed, repeat(words))
    made = []
    for prompt in islice(prompts, width):
        temperature = TEMPERATURE if task.sampled else 0.0
        body: Body = streamed([{"role": "user", "content": prompt}], max_tokens, temperature)
        if task.sampled:
            body["seed"] = draw.getrandbits(32)
        made.append(body)
    return made


def copy_prompts(seed: str, words: int) -> Iterator[str]:
    """Lists of at least `words` words, each to be repeated; no two are alike.

    A list, since a small model tells a text again in words of its own, and it is the copy that is asked for.
    """
    draw = random.Random(seed)
    while True:
        nouns: list[str] = []
        lines: list[str] = []
        while len(lines) * LINE_WORDS < words:
            nouns = nouns or draw.sample(WORDS, len(WORDS))
            thing = f"{draw.choice(QUALITIES.split())} {nouns.pop()}"
            lines.append(f"{len(lines) + 1}. {thing}, {draw.randint(2, 99)} coins")
        yield COPY + "\n".join(lines)

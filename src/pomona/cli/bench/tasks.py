"""What speculation is measured on: answers that repeat their prompt, and free chat; greedy and sampled. Pure."""

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice, repeat
from typing import TypeVar

from pomona.cli.bench.load import Message, streamed
from pomona.cli.bench.prompts import WORDS, unique_prompts

TEMPERATURE = 0.8
"""Of sampled tasks."""
QUALITIES = "ancient broken frozen golden heavy hollow narrow purple quiet rusty silver simple velvet wooden yellow"
LINE_WORDS = 5
"""Of one line of a list."""
EXAMPLE_LINES = 3
PRICES = range(2, 100)
COPY = "Repeat this list exactly:\n\n"

T = TypeVar("T")
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
    made = []
    for messages in islice(copies(seed, words) if task.copies else stories(seed, words), width):
        body: Body = streamed(messages, max_tokens, TEMPERATURE if task.sampled else 0.0)
        if task.sampled:
            body["seed"] = draw.getrandbits(32)
        made.append(body)
    return made


def stories(seed: str, words: int) -> Iterator[list[Message]]:
    return ([_said("user", prompt)] for prompt in unique_prompts(seed, repeat(words)))


def copies(seed: str, words: int) -> Iterator[list[Message]]:
    """A list of at least `words` words is to be repeated, as another one was before; no two lists are alike.

    Lists, and an example, since a small model tells a text again in words of its own; and no word or price twice in
    a list as long as they last, since it loses its place where lines are alike: it is the copy that is wanted.
    """
    draw = random.Random(seed)
    while True:
        example, wanted = _list(draw, EXAMPLE_LINES), _list(draw, -(-words // LINE_WORDS))
        yield [_said("user", COPY + example), _said("assistant", example), _said("user", COPY + wanted)]


def _list(draw: random.Random, lines: int) -> str:
    qualities, nouns, prices = _shuffled(draw, QUALITIES.split()), _shuffled(draw, WORDS), _shuffled(draw, PRICES)
    return "\n".join(
        f"{number}. {next(qualities)} {next(nouns)}, {next(prices)} coins" for number in range(1, lines + 1)
    )


def _shuffled(draw: random.Random, values: Sequence[T]) -> Iterator[T]:
    """All of them in any order, and all of them again, without end."""
    while True:
        yield from draw.sample(values, len(values))


def _said(role: str, text: str) -> Message:
    return {"role": role, "content": text}

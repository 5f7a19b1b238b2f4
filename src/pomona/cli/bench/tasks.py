"""What speculation is measured on: answers that repeat their prompt, and free chat; greedy and sampled. Pure."""

import random
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice, repeat

from pomona.cli.bench.load import streamed
from pomona.cli.bench.prompts import WORDS, unique_prompts

TEMPERATURE = 0.8
"""Of sampled tasks."""
PEOPLE = "Anna Boris Clara David Elena Felix Greta Henry Irene Jonas Klara Louis Maria Niels Olga Peter"
YEAR = "January February March April May June July August September October November December"
COPY = "Repeat the following text exactly, word for word, and write nothing else.\n\n"

Body = dict[str, object]
"""The JSON of a chat request, but for its model."""


class Task(StrEnum):
    COPY = "copy"
    """The answer is a text of the prompt."""
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
    """Texts of whole sentences, of at least `words` words, each to be repeated; no two are alike."""
    draw = random.Random(seed)
    while True:
        text = ""
        while len(text.split()) < words:
            text += " " + _sentence(draw)
        yield COPY + text.strip()


def _sentence(draw: random.Random) -> str:
    first, second, third = draw.sample(WORDS, 3)
    name, other = draw.sample(PEOPLE.split(), 2)
    number, day, month = draw.randint(2, 99), draw.randint(1, 28), draw.choice(YEAR.split())
    forms = (
        f"On {day} {month} {name} carried the {first} and {number} pieces of {second} to the {third}.",
        f"{name} asked {other} whether the {first} near the {second} was worth {number} coins.",
        f"Behind the {first} there is a {second} that {name} bought from {other} in {month}.",
        f"The {first} cost {number} coins, the {second} was a gift, and the {third} belongs to {name}.",
        f"{name} and {other} waited {number} days for the {first}, but only a {second} came.",
    )
    return draw.choice(forms)

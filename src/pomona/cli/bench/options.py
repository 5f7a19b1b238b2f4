"""What several bench commands take on their command lines."""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell expects it."""

Number = TypeVar("Number", int, float)
Word = TypeVar("Word", bound=StrEnum)

Out = Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")]
MaxTokens = Annotated[int, typer.Option(min=2, help="Tokens that each answer may have.")]
PromptWords = Annotated[int, typer.Option(min=1, help="Words drawn for each prompt; no two prompts are alike.")]
Seed = Annotated[str, typer.Option(help="The same seed gives the same prompts.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds; every second one runs in reverse order.")]
Model = Annotated[str | None, typer.Argument(help="Model id or folder; default: the built-in model.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="A tiny random model, where all but the model's own time shows.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the servers under test; 0: any free.")]
ReadyTimeout = Annotated[float, typer.Option(min=1.0, help="Seconds that a server may take to be ready.")]


def words(text: str, known: Sequence[Word]) -> tuple[Word, ...]:
    """`copy,chat` as members of `known`, in the order of `known`; raises typer.BadParameter."""
    named = [part.strip() for part in text.split(",")]
    for name in named:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}")
    return tuple(word for word in known if word in named)


def counts(text: str) -> tuple[int, ...]:
    """`1,8,16` as ascending numbers without repeats; raises typer.BadParameter."""
    numbers = _numbers(text, int, "1,8,16")
    if numbers[0] < 1:
        raise typer.BadParameter(f"{text!r} holds a number below 1")
    return numbers


def amounts(text: str | None) -> tuple[float, ...]:
    """`0.5,2` as ascending numbers above 0 without repeats, none for None; raises typer.BadParameter."""
    if text is None:
        return ()
    numbers = _numbers(text, float, "0.5,2")
    if not all(number > 0 and math.isfinite(number) for number in numbers):
        raise typer.BadParameter(f"{text!r} holds a number that is not above 0")
    return numbers


def _numbers(text: str, kind: Callable[[str], Number], example: str) -> tuple[Number, ...]:
    try:
        return tuple(sorted({kind(part) for part in text.split(",")}))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a list like {example}") from error

"""The subcommands of `pomona draft` and their options; what each needs is imported when it runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

draft_app = typer.Typer(
    help="Make guesses at the next tokens better, which are verified and change no answer.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class KindChoice(StrEnum):
    AUTO = "auto"
    C0 = "c0"
    C1 = "c1"
    C2 = "c2"
    C1_C2 = "c1+c2"


@draft_app.callback()
def draft() -> None:
    pass


@draft_app.command("fit-corrector")
def fit_corrector(
    model: Annotated[str, typer.Argument(help="Id of an imported model, or a folder, with a prediction head.")],
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A prompt a line, of the kind that will be served.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=8, help="The longest answer to a prompt.")] = 96,
    depth: Annotated[int, typer.Option(min=2, max=8, help="Guesses of a round.")] = 3,
    kind: Annotated[
        KindChoice,
        typer.Option(help="c0, c1: scale and shift all channels, or each; c2: a step of low rank; auto: the best."),
    ] = KindChoice.AUTO,
    rank: Annotated[int, typer.Option(min=1, help="Of c2.")] = 16,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: where the worker that serves the model looks.")
    ] = None,
) -> int:
    """Fit how a model's prediction head corrects its own guesses.

    The model answers the prompts, three quarters of the answers are fitted on, and the others show what is gained.
    Ctrl-C ends the answering; what was answered until then is used.
    """
    from pomona.cli.draft.fit_corrector import Wish, run

    return run(Wish(model, prompts, tokens, depth, kind.value, rank, out))

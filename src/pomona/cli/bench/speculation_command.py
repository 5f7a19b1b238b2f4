"""`pomona bench speculation` as it is typed."""

from typing import Annotated

import typer

from pomona.cli.bench.options import (
    INTERRUPTED,
    MaxTokens,
    Model,
    Out,
    Port,
    ReadyTimeout,
    Rounds,
    Seed,
    Tiny,
    counts,
    words,
)


def speculation(
    model: Model = None,
    tiny: Tiny = False,
    tasks: Annotated[
        str, typer.Option(help="What is asked; the sampled ones at temperature 0.8.")
    ] = "copy,copy-sampled,chat,chat-sampled",
    widths: Annotated[str, typer.Option(help="Requests at once, one measurement for each number.")] = "1,4,8",
    ways: Annotated[
        str | None, typer.Option(help="auto, ngram, draft, mtp, layers; default: auto and all that the model has.")
    ] = None,
    compare: Annotated[bool, typer.Option(help="Also have mlx_lm.server answer the copy task.")] = False,
    rounds: Rounds = 3,
    max_tokens: MaxTokens = 96,
    prompt_words: Annotated[int, typer.Option(min=1, help="Words of each prompt, or a sentence more.")] = 60,
    depth: Annotated[int | None, typer.Option(min=1, help="Guesses at once that requests allow.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="Id or folder of a draft model.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="First layers of the model that guess.")] = None,
    port: Port = 0,
    ready_timeout: ReadyTimeout = 300.0,
    seed: Seed = "0",
    out: Out = None,
) -> int:
    """Answer the same requests with and without speculation, in turn on one running server; print the ratios."""
    from rich.console import Console

    from pomona.cli.bench.ground import ground
    from pomona.cli.bench.report import check_writable, finish, speculation_table
    from pomona.cli.bench.speculation import SpeculationBench
    from pomona.cli.bench.speculations import SpeculationPlan, Way, conclude
    from pomona.cli.bench.subject import model_folder
    from pomona.cli.bench.tasks import Task

    console = Console(stderr=True)
    known = tuple(way for way in Way if way not in (Way.OFF, Way.MLX_LM))
    plan = SpeculationPlan(
        tasks=words(tasks, tuple(Task)),
        widths=counts(widths),
        ways=None if ways is None else words(ways, known),
        compare=compare,
        rounds=rounds,
        max_tokens=max_tokens,
        words=prompt_words,
        depth=depth,
        seed=seed,
    )
    check_writable(out)
    with ground(model, console, tiny=tiny, port=port, ready_timeout_s=ready_timeout) as here:
        environment = here.environment
        if compare:
            for note in environment.notes:
                console.print(f"note: {note}", markup=False, highlight=False)
        drafting = None
        if draft_model is not None:
            drafting = model_folder(draft_model, tiny=False, scratch=here.scratch, console=console)
        bench = SpeculationBench(plan=plan, ground=here, draft_model=drafting, layers=layers)
        whole = bench.run()
    result = conclude(environment, plan, bench.runs, interrupted=not whole)
    finish(result, speculation_table(result), console, out)
    if result.errors:
        console.print(f"{result.errors} requests failed: these figures are not comparable", markup=False)
    return INTERRUPTED if result.interrupted else 1 if result.errors else 0

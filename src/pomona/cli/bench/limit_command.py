"""`pomona bench limit` as it is typed."""

import dataclasses
from typing import Annotated

import typer

from pomona.cli.bench.floor import Loader
from pomona.cli.bench.options import (
    INTERRUPTED,
    MaxTokens,
    Model,
    Out,
    Port,
    PromptWords,
    ReadyTimeout,
    Rounds,
    Seed,
    Tiny,
    counts,
)


def limit(
    model: Model = None,
    tiny: Tiny = False,
    widths: Annotated[str, typer.Option(help="Rows of the batch, one measurement for each number.")] = "1,2,4,8,16,32",
    rounds: Rounds = 3,
    max_tokens: MaxTokens = 64,
    prompt_words: PromptWords = 40,
    server: Annotated[bool, typer.Option(help="Also send the same batches to Pomona over HTTP.")] = True,
    loader: Annotated[Loader, typer.Option(help="Who loads the bare loop's model.")] = Loader.MLX_LM,
    port: Port = 0,
    ready_timeout: ReadyTimeout = 300.0,
    seed: Seed = "0",
    out: Out = None,
) -> int:
    """Run a bare MLX loop on a model, the floor for any server, and Pomona beside it; print the ratios."""
    from rich.console import Console

    from pomona.cli.bench.ground import ground
    from pomona.cli.bench.limit import LimitBench
    from pomona.cli.bench.limits import LimitPlan, WidthRun, conclude
    from pomona.cli.bench.report import check_writable, finish, limit_table

    console = Console(stderr=True)
    plan = LimitPlan(
        widths=counts(widths),
        rounds=rounds,
        max_tokens=max_tokens,
        prompt_words=prompt_words,
        server=server,
        loader=loader,
        seed=seed,
    )
    check_writable(out)
    measured: list[WidthRun] = []
    with ground(model, console, tiny=tiny, port=port, ready_timeout_s=ready_timeout) as here:
        environment = here.environment
        if loader is Loader.POMONA or not server:
            environment = dataclasses.replace(environment, notes=())
        for note in environment.notes:
            console.print(f"note: {note}", markup=False, highlight=False)
        bench = LimitBench(plan=plan, ground=here)
        whole = bench.run(measured)
    limits = conclude(environment, plan, measured, interrupted=not whole)
    finish(limits, limit_table(limits), console, out)
    if limits.errors:
        console.print(f"{limits.errors} requests failed: these figures are not comparable", markup=False)
    return INTERRUPTED if limits.interrupted else 1 if limits.errors else 0

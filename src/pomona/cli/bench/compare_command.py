"""`pomona bench compare` as it is typed."""

from typing import Annotated

import typer

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


def compare(
    model: Model = None,
    tiny: Tiny = False,
    streams: Annotated[str, typer.Option(help="Streams at once, one load for each number.")] = "1,8,16",
    rounds: Rounds = 3,
    max_tokens: MaxTokens = 64,
    prompt_words: PromptWords = 40,
    requests_per_stream: Annotated[int, typer.Option(min=1, help="Requests that each stream sends in a load.")] = 2,
    single: Annotated[bool, typer.Option(help="Also compare a single stream with mlx_lm.stream_generate.")] = True,
    port: Port = 0,
    ready_timeout: ReadyTimeout = 300.0,
    seed: Seed = "0",
    out: Out = None,
) -> int:
    """Start Pomona and mlx_lm.server in turn on the same model and load; print the ratios of their speed."""
    from rich.console import Console

    from pomona.cli.bench.compare import Bench
    from pomona.cli.bench.comparison import Measured, conclude
    from pomona.cli.bench.ground import ground
    from pomona.cli.bench.plan import Plan
    from pomona.cli.bench.report import check_writable, comparison_table, finish

    console = Console(stderr=True)
    plan = Plan(
        streams=counts(streams),
        rounds=rounds,
        max_tokens=max_tokens,
        prompt_words=prompt_words,
        requests_per_stream=requests_per_stream,
        single=single,
        seed=seed,
    )
    check_writable(out)
    measured: list[Measured] = []
    with ground(model, console, tiny=tiny, port=port, ready_timeout_s=ready_timeout) as here:
        environment = here.environment
        for note in environment.notes:
            console.print(f"note: {note}", markup=False, highlight=False)
        bench = Bench(plan=plan, ground=here)
        whole = bench.run(measured)
    comparison = conclude(environment, plan, measured, interrupted=not whole)
    finish(comparison, comparison_table(comparison), console, out)
    if comparison.errors:
        console.print(f"{comparison.errors} requests failed: these figures are not comparable", markup=False)
    return INTERRUPTED if comparison.interrupted else 1 if comparison.errors else 0

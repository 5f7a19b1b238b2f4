"""`pomona bench compare` as it is typed."""

import os
import tempfile
from pathlib import Path
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
    from pomona.cli.bench.contenders import clean_environment
    from pomona.cli.bench.environment import describe
    from pomona.cli.bench.measure import sigterm_is_interrupt
    from pomona.cli.bench.plan import Plan
    from pomona.cli.bench.progress import BenchProgress
    from pomona.cli.bench.report import check_writable, comparison_table, finish
    from pomona.cli.bench.subject import model_folder
    from pomona.runtime import blas

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
    with tempfile.TemporaryDirectory(prefix="pomona-bench-") as scratch, sigterm_is_interrupt():
        folder = model_folder(model, tiny=tiny, scratch=Path(scratch), console=console)
        env = clean_environment(os.environ, Path(scratch), blas.environment(blas.find()))
        environment = describe(folder, env)
        for note in environment.notes:
            console.print(f"note: {note}", markup=False, highlight=False)
        bench = Bench(
            plan=plan,
            folder=folder,
            env=env,
            scratch=Path(scratch),
            port=port,
            ready_timeout_s=ready_timeout,
            progress=BenchProgress(console),
        )
        whole = bench.run(measured)
    comparison = conclude(environment, plan, measured, interrupted=not whole)
    finish(comparison, comparison_table(comparison), console, out)
    if comparison.errors:
        console.print(f"{comparison.errors} requests failed: these figures are not comparable", markup=False)
    return INTERRUPTED if comparison.interrupted else 1 if comparison.errors else 0

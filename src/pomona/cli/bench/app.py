"""`pomona bench serve` and `pomona bench compare`: JSON on standard output, progress and tables on standard error.

What a command needs is imported when it runs, so that this module costs the other commands nothing.
"""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell expects it."""

bench_app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Measure a server, or compare Pomona with mlx_lm on the same model and load.",
)

Out = Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")]
MaxTokens = Annotated[int, typer.Option(min=2, help="Tokens that each answer may have.")]
PromptWords = Annotated[int, typer.Option(min=1, help="Words drawn for each prompt; no two prompts are alike.")]
Seed = Annotated[str, typer.Option(help="The same seed gives the same prompts.")]


def counts(text: str) -> tuple[int, ...]:
    """`1,8,16` as ascending numbers without repeats; raises typer.BadParameter."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a list like 1,8,16") from error
    if numbers[0] < 1:
        raise typer.BadParameter(f"{text!r} holds a number below 1")
    return tuple(numbers)


@bench_app.command()
def serve(
    url: Annotated[str, typer.Option(help="The server's OpenAI base URL.")] = "http://127.0.0.1:8420/v1",
    model: Annotated[str | None, typer.Option(help="Model id; default: the first that the server lists.")] = None,
    concurrency: Annotated[str, typer.Option(help="Streams at once, one load for each number.")] = "1,8,16",
    requests: Annotated[int | None, typer.Option(min=1, help="Requests of each load; default: two a stream.")] = None,
    max_tokens: MaxTokens = 64,
    prompt_words: PromptWords = 40,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 is greedy.")] = 0.0,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that one request may take.")] = 600.0,
    seed: Seed = "0",
    out: Out = None,
) -> int:
    """Measure a running server; Ctrl-C gives what was measured so far. The first of POMONA_API_KEYS is sent."""
    from rich.console import Console

    from pomona.api_keys import keys_from_environment
    from pomona.cli.bench.load import Load
    from pomona.cli.bench.measure import sigterm_is_interrupt
    from pomona.cli.bench.models import find_target
    from pomona.cli.bench.progress import BenchProgress
    from pomona.cli.bench.report import check_writable, finish, load_table
    from pomona.cli.bench.running import measure_running, steps

    console = Console(stderr=True)
    levels = counts(concurrency)
    check_writable(out)
    keys = keys_from_environment(os.environ)
    target = find_target(url, model, keys[0] if keys else None)
    load = Load(
        concurrency=levels[0],
        requests=1,
        max_tokens=max_tokens,
        prompt_words=prompt_words,
        temperature=temperature,
        seed=seed,
        request_timeout_s=timeout,
    )
    with sigterm_is_interrupt():
        measured = measure_running(target, steps(load, levels, requests), BenchProgress(console))
    finish(measured, load_table(measured.loads), console, out)
    return INTERRUPTED if measured.interrupted else 1 if measured.errors else 0


@bench_app.command()
def compare(
    model: Annotated[str | None, typer.Argument(help="Model id or folder; default: the built-in model.")] = None,
    streams: Annotated[str, typer.Option(help="Streams at once, one load for each number.")] = "1,8,16",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; every second one runs in reverse order.")] = 3,
    max_tokens: MaxTokens = 64,
    prompt_words: PromptWords = 40,
    requests_per_stream: Annotated[int, typer.Option(min=1, help="Requests that each stream sends in a load.")] = 2,
    single: Annotated[bool, typer.Option(help="Also compare a single stream with mlx_lm.stream_generate.")] = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the servers under test; 0: any free.")] = 0,
    ready_timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that a server may take to be ready.")] = 300.0,
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
    from pomona.cli.transfer import transfer
    from pomona.home import Home
    from pomona.runtime import blas
    from pomona.workers.models import embedded
    from pomona.workers.models.library import ModelLibrary

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
    with transfer(console) as report:
        folder = ModelLibrary(Home.resolve().models).find(model or embedded.ID, progress=report).path
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="pomona-bench-") as scratch, sigterm_is_interrupt():
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

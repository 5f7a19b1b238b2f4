"""`pomona bench stall` as it is typed."""

from typing import Annotated

import typer

from pomona.cli.bench.options import INTERRUPTED, Model, Out, Port, ReadyTimeout, Seed, Tiny


def stall(
    model: Model = None,
    tiny: Tiny = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with prompts of its own.")] = 3,
    streams: Annotated[int, typer.Option(min=1, help="Streams that run when the long prompt comes.")] = 4,
    prompt_words: Annotated[int, typer.Option(min=1, help="Words of the long prompt.")] = 1900,
    stall_s: Annotated[float, typer.Option(min=0.001, help="worker.stall_s of the server.")] = 0.7,
    port: Port = 0,
    ready_timeout: ReadyTimeout = 300.0,
    seed: Seed = "0",
    out: Out = None,
) -> int:
    """Send a long prompt beside running streams: how long do they stall, and what does it cost the prompt?"""
    from rich.console import Console

    from pomona.cli.bench.ground import ground
    from pomona.cli.bench.report import check_writable, finish, stall_table
    from pomona.cli.bench.stall import StallBench
    from pomona.cli.bench.stalls import StallPlan, conclude

    console = Console(stderr=True)
    plan = StallPlan(rounds=rounds, streams=streams, prompt_words=prompt_words, stall_s=stall_s, seed=seed)
    check_writable(out)
    with ground(model, console, tiny=tiny, port=port, ready_timeout_s=ready_timeout) as here:
        environment = here.environment
        bench = StallBench(plan=plan, ground=here)
        whole = bench.run()
    stalls = conclude(environment, plan, bench.runs, interrupted=not whole)
    finish(stalls, stall_table(stalls), console, out)
    return INTERRUPTED if stalls.interrupted else 0

"""`pomona bench cache` as it is typed."""

from typing import Annotated

import typer

from pomona.cli.bench.options import INTERRUPTED, MaxTokens, Model, Out, Port, ReadyTimeout, Seed, Tiny


def cache(
    model: Model = None,
    tiny: Tiny = False,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds, each with a system prompt of its own.")] = 3,
    system_words: Annotated[int, typer.Option(min=1, help="Words of a system prompt.")] = 1600,
    turns: Annotated[int, typer.Option(min=0, help="Turns of the chat that grows; 0: none.")] = 20,
    max_tokens: MaxTokens = 16,
    port: Port = 0,
    ready_timeout: ReadyTimeout = 300.0,
    seed: Seed = "0",
    out: Out = None,
) -> int:
    """Time a long system prompt cold, from memory, and from disk after every process was killed; then a long chat."""
    from rich.console import Console

    from pomona.cli.bench.cache import CacheBench
    from pomona.cli.bench.ground import ground
    from pomona.cli.bench.report import check_writable, finish, reuse_table
    from pomona.cli.bench.reuse import CachePlan, conclude

    console = Console(stderr=True)
    plan = CachePlan(rounds=rounds, system_words=system_words, turns=turns, max_tokens=max_tokens, seed=seed)
    check_writable(out)
    with ground(model, console, tiny=tiny, port=port, ready_timeout_s=ready_timeout) as here:
        environment = here.environment
        bench = CacheBench(plan=plan, ground=here)
        whole = bench.run()
    reuse = conclude(environment, plan, bench.requests, bench.turns, interrupted=not whole)
    finish(reuse, reuse_table(reuse), console, out)
    return INTERRUPTED if reuse.interrupted else 0

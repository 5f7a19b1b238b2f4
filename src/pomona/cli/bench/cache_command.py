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
    trace: Annotated[
        int, typer.Option(min=0, help="Instead of all else: so many conversations with shared system prompts.")
    ] = 0,
    trace_turns: Annotated[int, typer.Option(min=1, help="Turns of each conversation of a trace.")] = 3,
    systems: Annotated[int, typer.Option(min=1, help="System prompts that a trace's conversations share.")] = 8,
    active: Annotated[int, typer.Option(min=1, help="Conversations of a trace that are under way at once.")] = 16,
    question_words: Annotated[
        int | None, typer.Option(min=1, help="Words of each question, or a sentence more; default: 12, of a trace 40.")
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Memory for a trace's prefixes, as a share of what all take.")
    ] = 0.1,
    against_mlx_lm: Annotated[bool, typer.Option(help="Also send a trace to mlx_lm.server.")] = True,
    max_tokens: MaxTokens = 16,
    port: Port = 0,
    ready_timeout: ReadyTimeout = 300.0,
    seed: Seed = "0",
    out: Out = None,
) -> int:
    """Time a long system prompt cold, from memory, and from disk after every process was killed; then a long chat.

    With --trace: many conversations instead, which share system prompts, and have memory for a part of them only.
    """
    from rich.console import Console

    from pomona.cli.bench import reuse as reuses
    from pomona.cli.bench import trace as traces
    from pomona.cli.bench.cache import CacheBench
    from pomona.cli.bench.conversation import FEW_WORDS
    from pomona.cli.bench.ground import ground
    from pomona.cli.bench.report import check_writable, finish, reuse_table, trace_table
    from pomona.cli.bench.trace_run import TraceBench

    console = Console(stderr=True)
    check_writable(out)
    with ground(model, console, tiny=tiny, port=port, ready_timeout_s=ready_timeout) as here:
        environment = here.environment
        if trace:
            plan = traces.TracePlan(
                conversations=trace,
                turns=trace_turns,
                systems=systems,
                system_words=system_words,
                question_words=question_words or 40,
                active=active,
                share=share,
                max_tokens=max_tokens,
                seed=seed,
            )
            ways = (traces.TraceWay.MEMORY, traces.TraceWay.DISK, traces.TraceWay.MLX_LM)
            run = TraceBench(plan=plan, ground=here, ways=ways if against_mlx_lm else ways[:2])
            whole = run.run()
            traced = traces.conclude(environment, plan, run.working_set_bytes, run.answered, interrupted=not whole)
            finish(traced, trace_table(traced), console, out)
            return INTERRUPTED if traced.interrupted else 0
        cache_plan = reuses.CachePlan(
            rounds=rounds,
            system_words=system_words,
            question_words=question_words or FEW_WORDS,
            turns=turns,
            max_tokens=max_tokens,
            seed=seed,
        )
        bench = CacheBench(plan=cache_plan, ground=here)
        whole = bench.run()
    reuse = reuses.conclude(environment, cache_plan, bench.requests, bench.turns, interrupted=not whole)
    finish(reuse, reuse_table(reuse), console, out)
    return INTERRUPTED if reuse.interrupted else 0

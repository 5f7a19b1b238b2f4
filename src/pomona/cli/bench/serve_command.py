"""`pomona bench serve` as it is typed."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pomona.cli.bench.options import INTERRUPTED, Out, Seed, amounts, counts
from pomona.cli.bench.slo import GapRule

STREAMS = "1,8,16"
Limit = Annotated[float | None, typer.Option(min=0.0, help="Part of the SLO, for each request by itself.")]


def serve(
    url: Annotated[str, typer.Option(help="The server's OpenAI base URL.")] = "http://127.0.0.1:8420/v1",
    model: Annotated[str | None, typer.Option(help="Model id; default: the first that the server lists.")] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            "--streams", "--concurrency", help=f"Closed loops: streams at once, such as {STREAMS}, the default."
        ),
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Open loops: requests a second, such as 0.5,2.")] = None,
    load: Annotated[
        str | None,
        typer.Option(help="Open loops: percent of what the widest closed loop reached, such as 25,50,75,100,120."),
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests of each load; default: two a stream, or 30 s of arrivals.")
    ] = None,
    max_tokens: Annotated[str, typer.Option(help="Tokens of an answer, or a mixture such as 32:0.8,256:0.2.")] = "64",
    prompt_words: Annotated[str, typer.Option(help="Words of a prompt, or a mixture such as 40:0.7,400:0.3.")] = "40",
    cancel: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of requests broken off early.")] = 0.0,
    slo_ttft_ms: Limit = None,
    slo_gap_ms: Limit = None,
    slo_gap: Annotated[GapRule, typer.Option(help="The gap of a request that --slo-gap-ms is about.")] = GapRule.P99,
    slo_tpot_ms: Limit = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 is greedy.")] = 0.0,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that one request may take.")] = 600.0,
    seed: Seed = "0",
    out: Out = None,
    html: Annotated[Path | None, typer.Option(help="Also write a report with plots, one file by itself.")] = None,
) -> int:
    """Measure a running server; Ctrl-C gives what was measured so far. The first of POMONA_API_KEYS is sent."""
    from rich.console import Console

    from pomona.api_keys import keys_from_environment
    from pomona.cli.bench.load import Load
    from pomona.cli.bench.measure import sigterm_is_interrupt
    from pomona.cli.bench.mixture import Mixture
    from pomona.cli.bench.models import find_target
    from pomona.cli.bench.page import Page
    from pomona.cli.bench.progress import BenchProgress
    from pomona.cli.bench.report import check_writable, finish, load_table, write
    from pomona.cli.bench.running import Running, Sweep
    from pomona.cli.bench.slo import Slo

    console = Console(stderr=True)
    rates, percents = amounts(rate), amounts(load)
    closed = concurrency or (STREAMS if percents or not rates else None)
    sweep = Sweep(
        load=Load(
            concurrency=1,
            requests=1,
            max_tokens=Mixture.parse(max_tokens, option="--max-tokens", least=2),
            prompt_words=Mixture.parse(prompt_words, option="--prompt-words"),
            temperature=temperature,
            seed=seed,
            request_timeout_s=timeout,
            cancel=cancel,
        ),
        streams=counts(closed) if closed else (),
        rates=rates,
        percents=percents,
        requests=requests,
        slo=Slo(ttft_ms=slo_ttft_ms, gap_ms=slo_gap_ms, gap_rule=slo_gap, tpot_ms=slo_tpot_ms),
    )
    check_writable(out)
    check_writable(html, "--html")
    keys = keys_from_environment(os.environ)
    target = find_target(url, model, keys[0] if keys else None)
    running = Running(target, sweep, BenchProgress(console))
    with sigterm_is_interrupt():
        running.run()
    measured = running.measurements
    finish(measured, load_table(measured.loads), console, out)
    if html is not None:
        write(html, Page(target, sweep, running.recorded, interrupted=measured.interrupted).render(), "--html")
    return INTERRUPTED if measured.interrupted else 1 if measured.errors else 0

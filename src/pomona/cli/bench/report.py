"""Results for people: tables. The JSON is the results themselves."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pomona.cli.bench.comparison import Comparison
from pomona.cli.bench.limits import Limits
from pomona.cli.bench.metrics import LoadResult, Ratio
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.quantile import Percentiles
from pomona.cli.bench.reuse import Reuse, Source
from pomona.cli.bench.speculations import Speculations, Way
from pomona.cli.bench.stalls import Stalls
from pomona.cli.bench.trace import Traced


def as_json(result: object) -> str:
    """Any result type of this package, indented."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode()


def check_writable(out: Path | None, option: str = "--out") -> None:
    """Raises BenchError now rather than after a long run; leaves an empty file at most."""
    if out is None:
        return
    try:
        out.open("ab").close()
    except OSError as error:
        raise BenchError(f"{option} {out}: {error.strerror}; name a file in a folder that exists") from error


def finish(result: object, table: Table, console: Console, out: Path | None) -> None:
    """The table for people on `console`, the JSON on standard output and in the file `out`."""
    console.print(table)
    text = as_json(result)
    print(text, flush=True)
    if out is not None:
        write(out, text + "\n", "--out")


def write(out: Path, text: str, option: str) -> None:
    """Raises BenchError if the file cannot be written; the JSON has been printed by then."""
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{option} {out}: {error.strerror}; the JSON above is whole") from error


def load_table(results: Sequence[LoadResult]) -> Table:
    """One line for each load; columns that say nothing of any of them are left out."""
    leaves = any(result.left for result in results)
    judged = any(result.goodput is not None for result in results)
    opens = any(result.rate is not None for result in results)
    columns = ["load" if opens else "streams", "done", "err", *(["left"] if leaves else [])]
    columns += [*(["in/s", "out/s", "tok/s"] if opens else ["tokens/s"]), "TTFT", "TPOT", "gap"]
    table = _table([*columns, *(["good"] if judged else [])])
    table.caption = "TTFT, TPOT and the gap between two deltas in ms: p50/p99"
    if opens:
        table.caption += "; in, out: requests/s offered and ended; tok/s: tokens/s"
    if judged:
        table.caption += "; good: share that met the SLO"
    for result in results:
        cells = [label_of(result), str(result.requests), str(result.errors)]
        cells += [str(result.left)] if leaves else []
        offered = result.offered_per_s if result.offered_per_s is not None else result.rate
        cells += ["-" if offered is None else _short(offered), _short(result.ended_per_s)] if opens else []
        cells += [_short(result.tokens_per_s)]
        cells += [_spread(values) for values in (result.ttft_ms, result.tpot_ms, result.gap_ms)]
        cells += ["-" if result.goodput is None else f"{result.goodput.share:.0%}"] if judged else []
        table.add_row(*cells)
    return table


def label_of(result: LoadResult) -> str:
    """What a load is called: its streams, its rate or its share of the capacity."""
    if result.load_percent is not None:
        label = f"{result.load_percent:g} %"
    else:
        label = str(result.concurrency) if result.rate is None else f"{result.rate:g}/s"
    return f"{label} (interrupted)" if result.interrupted else label


def limit_table(limits: Limits) -> Table:
    table = _table(["rows", "bare ms", "bare t/s", "Pomona t/s", "ratio", "range", "whole", "added"])
    table.caption = (
        "While all rows decode, medians of the rounds. ms: one step; t/s: tokens a second; ratio: Pomona / bare loop "
        "in t/s, above 1 Pomona is faster; whole: with prefill; added: gap at the client less the worker's step, "
        "in ms: p50/p99"
    )
    for line in limits.lines:
        table.add_row(
            str(line.width),
            _number(line.bare_step_ms, 2),
            _number(line.bare_tokens_per_s, 1),
            _number(line.pomona_tokens_per_s, 1),
            *_ratio(line.decode),
            _ratio(line.whole)[0],
            f"{_number(line.added_p50_ms, 1)}/{_number(line.added_p99_ms, 1)}",
        )
    return table


def reuse_table(reuse: Reuse) -> Table:
    table = _table(["system prompt", "tokens", "cached", "TTFT ms", "ratio", "range"])
    table.caption = "Medians of the rounds; ratio: TTFT against the cold one of the same round."
    if reuse.beyond_new is not None:
        table.caption += (
            f" Chat of {len(reuse.turns)} turns: at most {reuse.beyond_new} tokens computed beyond the new."
        )
    for source, ratio in ((Source.COLD, None), (Source.MEMORY, reuse.memory), (Source.DISK, reuse.disk)):
        own = [one for one in reuse.requests if one.source is source]
        if own:
            figures = ([getattr(one, of) for one in own] for of in ("prompt_tokens", "cached_tokens", "ttft_ms"))
            table.add_row(source.value, *(_number(statistics.median(values), 0) for values in figures), *_ratio(ratio))
    return table


def trace_table(traced: Traced) -> Table:
    table = _table(["prefixes", "MB", "done", "tokens", "hit", "TTFT ms", "mean"])
    table.caption = (
        "MB: memory for prefixes; hit: prompt tokens that were not computed; TTFT: p50/p99. "
        f"All of the trace takes {_megabytes(traced.working_set_bytes)} MB."
    )
    for line in traced.lines:
        table.add_row(
            line.way.value,
            _megabytes(line.budget_bytes),
            str(line.requests),
            str(line.prompt_tokens),
            f"{line.hit_ratio:.1%}",
            _spread(line.ttft_ms),
            _number(line.mean_ttft_ms, 0),
        )
    return table


def _megabytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else _short(nbytes / 1e6)


def stall_table(stalls: Stalls) -> Table:
    table = _table(["prompt", "alone", "beside", "step ms", "longest gap", "of bound", "t/s"])
    table.caption = (
        "One line a round. alone, beside: TTFT in s of the long prompt; longest gap of the streams meanwhile in ms; of "
        "bound: against stall_s and a step; t/s: tokens a second of all streams meanwhile. "
        f"TTFT beside/alone: {' '.join(_ratio(stalls.ttft))}"
    )
    of_bound = stalls.stall.rounds if stalls.stall is not None else ()
    for run, share in zip(stalls.runs, of_bound, strict=True):
        table.add_row(
            str(run.prompt_tokens),
            _number(run.alone_ttft_ms / 1e3, 2),
            _number(run.beside_ttft_ms / 1e3, 2),
            _number(run.step_ms, 1),
            _number(run.longest_gap_ms, 0),
            _number(share, 2),
            _number(run.meanwhile_tokens_per_s, 1),
        )
    return table


def speculation_table(speculations: Speculations) -> Table:
    columns = ["task", "rows", "way", "t/s", "ratio", "range", "gained", "taken"]
    compared = any(line.way is Way.MLX_LM for line in speculations.lines)
    table = _table([*columns, *(["/peer"] if compared else []), "other"])
    table.caption = (
        "Medians of the rounds. t/s: tokens a second while decoding, all rows together; ratio: against off, above 1 it "
        "pays; gained: guesses that a row gains in a step; taken: share of the guesses that were verified; other: "
        "answers whose text is not that of off" + ("; /peer: against mlx_lm.server" if compared else "")
    )
    for line in speculations.lines:
        table.add_row(
            line.task.value,
            str(line.width),
            line.way.value,
            _number(line.decode_tokens_per_s, 1),
            *_ratio(line.ratio),
            _number(line.accepted_per_step, 2),
            "-" if line.acceptance is None else f"{line.acceptance:.0%}",
            *([_ratio(line.over_mlx_lm)[0]] if compared else []),
            str(line.changed),
        )
    return table


def comparison_table(comparison: Comparison) -> Table:
    table = _table(["streams", "Pomona", "mlx_lm", "ratio", "range"])
    table.caption = (
        "One value a round. tokens/s against mlx_lm.server: above 1 Pomona is faster. "
        "ms/token against mlx_lm.stream_generate in one process: below 1 Pomona is faster."
    )
    for line in comparison.throughput:
        label = f"{line.concurrency}, tokens/s"
        table.add_row(label, _values(line.pomona), _values(line.mlx_lm), *_ratio(line.ratio))
    for label, single in (("1, ms/token", comparison.single), ("1, with prefill", comparison.whole)):
        if single is not None:
            table.add_row(label, _values(single.pomona), _values(single.stream_generate), *_ratio(single.ratio))
    return table


def _table(columns: Sequence[str]) -> Table:
    """Narrow enough for 80 columns; what does not fit is folded, never cut."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _values(values: Sequence[float]) -> str:
    return " ".join(f"{value:.1f}" for value in values) or "-"


def _short(value: float) -> str:
    """Three digits or so."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ratio(ratio: Ratio | None) -> tuple[str, str]:
    if ratio is None:
        return "-", "-"
    return f"{ratio.median:.2f}", f"{ratio.min:.2f}-{ratio.max:.2f}"


def _spread(values: Percentiles | None) -> str:
    return "-" if values is None else f"{values.p50:.0f}/{values.p99:.0f}"

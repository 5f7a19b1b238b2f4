"""Results for people: tables. The JSON is the results themselves."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from pomona.cli.bench.comparison import Comparison
from pomona.cli.bench.metrics import LoadResult, Percentiles, Ratio
from pomona.cli.bench.problem import BenchError


def as_json(result: object) -> str:
    """Any result type of this package, indented."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode()


def check_writable(out: Path | None) -> None:
    """Raises BenchError now rather than after a long run; leaves an empty file at most."""
    if out is None:
        return
    try:
        out.open("ab").close()
    except OSError as error:
        raise BenchError(f"--out {out}: {error.strerror}; name a file in a folder that exists") from error


def finish(result: object, table: Table, console: Console, out: Path | None) -> None:
    """The table for people on `console`, the JSON on standard output and in the file `out`."""
    console.print(table)
    text = as_json(result)
    print(text, flush=True)
    if out is None:
        return
    try:
        out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BenchError(f"--out {out}: {error.strerror}; the JSON above is whole") from error


def load_table(results: Sequence[LoadResult]) -> Table:
    table = Table("streams", "requests", "errors", "tokens", "wall s", "tokens/s", title="Load")
    for column in ("TTFT ms p50/p90/p99", "TPOT ms p50/p90/p99", "gap ms p50/p99/max"):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            f"{result.concurrency}{' (interrupted)' if result.interrupted else ''}",
            str(result.requests),
            str(result.errors),
            str(result.completion_tokens),
            f"{result.wall_s:.1f}",
            f"{result.tokens_per_s:.1f}",
            _three(result.ttft_ms),
            _three(result.tpot_ms),
            _spread(result.gap_ms),
        )
    return table


def comparison_table(comparison: Comparison) -> Table:
    table = Table(
        "measure", "Pomona", "mlx_lm", "ratio", "min", "max", title="Pomona against mlx_lm, one value a round"
    )
    for line in comparison.throughput:
        label = f"tokens/s, streams {line.concurrency} (higher ratio is better)"
        table.add_row(label, _values(line.pomona), _values(line.mlx_lm), *_ratio(line.ratio))
    if comparison.single is not None:
        single = comparison.single
        label = "ms/token, single stream against stream_generate (lower ratio is better)"
        table.add_row(label, _values(single.pomona), _values(single.stream_generate), *_ratio(single.ratio))
    return table


def _values(values: Sequence[float]) -> str:
    return " ".join(f"{value:.1f}" for value in values) or "-"


def _ratio(ratio: Ratio | None) -> tuple[str, str, str]:
    if ratio is None:
        return "-", "-", "-"
    return f"{ratio.median:.2f}", f"{ratio.min:.2f}", f"{ratio.max:.2f}"


def _three(values: Percentiles | None) -> str:
    return "-" if values is None else f"{values.p50:.0f}/{values.p90:.0f}/{values.p99:.0f}"


def _spread(values: Percentiles | None) -> str:
    return "-" if values is None else f"{values.p50:.0f}/{values.p99:.0f}/{values.max:.0f}"

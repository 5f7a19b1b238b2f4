"""Results for people: tables. The JSON is the results themselves."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
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
    table = _table(["streams", "done", "failed", "tokens/s", "TTFT", "TPOT", "gap"])
    table.caption = "TTFT, TPOT and the gap between two deltas in ms: p50/p99"
    for result in results:
        table.add_row(
            f"{result.concurrency} (interrupted)" if result.interrupted else str(result.concurrency),
            str(result.requests),
            str(result.errors),
            f"{result.tokens_per_s:.1f}",
            _spread(result.ttft_ms),
            _spread(result.tpot_ms),
            _spread(result.gap_ms),
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
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _values(values: Sequence[float]) -> str:
    return " ".join(f"{value:.1f}" for value in values) or "-"


def _ratio(ratio: Ratio | None) -> tuple[str, str]:
    if ratio is None:
        return "-", "-"
    return f"{ratio.median:.2f}", f"{ratio.min:.2f}-{ratio.max:.2f}"


def _spread(values: Percentiles | None) -> str:
    return "-" if values is None else f"{values.p50:.0f}/{values.p99:.0f}"

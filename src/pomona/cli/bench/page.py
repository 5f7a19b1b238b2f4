"""The HTML report of `bench serve`: one file that needs no network and runs no script. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pomona.cli.bench.load import Target
from pomona.cli.bench.measure import Recorded
from pomona.cli.bench.metrics import LoadResult
from pomona.cli.bench.plots import TIMELINE_REQUESTS, bars, distribution_plots, sweep_plots
from pomona.cli.bench.quantile import Percentiles
from pomona.cli.bench.report import label_of
from pomona.cli.bench.running import Sweep
from pomona.cli.bench.style import STYLE
from pomona.cli.bench.svg import line_plot, timeline

COLUMNS = (
    *("load", "answers", "failed", "left", "offered /s", "ended /s", "met SLO", "tokens/s"),
    *("TTFT ms", "TPOT ms", "gap ms", "latency ms"),
)


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that comes from outside (addresses, names, error texts) is escaped."""

    target: Target
    sweep: Sweep
    recorded: Sequence[Recorded]
    interrupted: bool

    def render(self) -> str:
        """A whole HTML document."""
        results = [one.result for one in self.recorded]
        plots = "".join(line_plot(plot) for plot in [*sweep_plots(results), *distribution_plots(self.recorded)])
        lines = "".join(_timeline(one) for one in self.recorded)
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.target.model)}: pomona bench serve</title><style>{STYLE}</style></head><body>"
            f"<h1>{escape(self.target.model)}</h1>{self._settings()}{_table(results)}{_errors(results)}"
            f'<div class="plots">{plots}</div>{lines}</body></html>\n'
        )

    def _settings(self) -> str:
        load, slo = self.sweep.load, self.sweep.slo
        told = [
            ("server", self.target.url),
            ("words of a prompt", str(load.prompt_words)),
            ("most tokens of an answer", str(load.max_tokens)),
            ("broken off early", f"{load.cancel:.0%}"),
            ("temperature", f"{load.temperature:g}"),
            ("seed", self.sweep.load.seed),
        ]
        promises = [
            ("TTFT", slo.ttft_ms),
            (f"{slo.gap_rule} gap", slo.gap_ms),
            ("TPOT", slo.tpot_ms),
        ]
        promised = ", ".join(f"{name} at most {limit:g} ms" for name, limit in promises if limit is not None)
        if promised:
            told.append(("SLO", promised))
        if self.interrupted:
            told.append(("interrupted", "the last load may be a part, the ones after it are missing"))
        return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in told) + "</dl>"


def _table(results: Sequence[LoadResult]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(result))}</tr>" for result in results)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        "<p>Latencies are p50 / p90 / p95 / p99 / max. A load is its streams, its requests/s, or its share of what the "
        "widest closed loop reached.</p>"
    )


def _cells(result: LoadResult) -> list[str]:
    offered = result.offered_per_s if result.offered_per_s is not None else result.rate
    return [
        label_of(result),
        str(result.requests),
        str(result.errors),
        str(result.left),
        "-" if offered is None else f"{offered:.2f}",
        f"{result.ended_per_s:.2f}",
        "-" if result.goodput is None else f"{result.goodput.share:.0%} ({result.goodput.per_s:.2f}/s)",
        f"{result.tokens_per_s:.1f}",
        *(_spread(values) for values in (result.ttft_ms, result.tpot_ms, result.gap_ms, result.latency_ms)),
    ]


def _errors(results: Sequence[LoadResult]) -> str:
    told = [f"{label_of(result)}: {reason}" for result in results for reason in result.first_errors]
    return "<h2>First errors</h2><ul>" + "".join(f"<li>{escape(line)}</li>" for line in told) + "</ul>" if told else ""


def _timeline(one: Recorded) -> str:
    shown = min(TIMELINE_REQUESTS, len(one.outcomes))
    title = f"Requests over time, load {label_of(one.result)}: {shown} of {len(one.outcomes)}"
    drawn = timeline(title, bars(one.outcomes))
    return f"<details><summary>{escape(title)}</summary>{drawn}</details>"


def _spread(values: Percentiles | None) -> str:
    if values is None:
        return "-"
    return " / ".join(f"{value:.0f}" for value in (values.p50, values.p90, values.p95, values.p99, values.max))

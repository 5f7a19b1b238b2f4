"""Plots as inline SVG: lines over an axis, and requests over time. Pure; colours are the page's CSS classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pomona.cli.bench.axis import Axis, axis

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 44
COLOURS = 8
"""Classes c0 to c7; more series begin again."""
BAR, GAP = 5, 2
KINDS = (
    ("answer", "answered"),
    ("failure", "failed"),
    ("left", "broken off by its client"),
    ("answer waiting", "before the first text"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str
    points: tuple[tuple[float, float], ...]
    """(x, y), x ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    dots: bool = True
    """Mark every point, as measurements are; a distribution is a line alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One request: seconds since the first of its load. `first` is the moment of its first text, None without."""

    started: float
    first: float | None
    finished: float
    kind: str
    """A CSS class: answer, failure or left."""
    text: str


def line_plot(plot: Plot) -> str:
    """A figure; series without a point are left out, and "" is what no series at all gives."""
    series = [one for one in plot.series if one.points]
    if not series:
        return ""
    across = axis((x for one in series for x, _ in one.points), start=LEFT, end=WIDTH - RIGHT)
    up = axis((y for one in series for _, y in one.points), start=HEIGHT - BOTTOM, end=TOP)
    drawn = "".join(_line(one, number % COLOURS, across, up, dots=plot.dots) for number, one in enumerate(series))
    legend = "".join(
        f'<li><span class="key c{number % COLOURS}"></span>{escape(one.name)}</li>' for number, one in enumerate(series)
    )
    return (
        f"<figure><figcaption>{escape(plot.title)}</figcaption>"
        f"{_frame(plot.title, HEIGHT, across, up, plot.x, plot.y, drawn)}"
        f'<ul class="legend">{legend}</ul></figure>'
    )


def timeline(title: str, bars: Sequence[Bar]) -> str:
    """One line for each request from its start to its end, paler until its first text."""
    height = TOP + BOTTOM + len(bars) * (BAR + GAP)
    across = axis((bar.finished for bar in bars), start=LEFT, end=WIDTH - RIGHT)
    drawn = []
    for number, bar in enumerate(bars):
        y = TOP + number * (BAR + GAP)
        first = bar.finished if bar.first is None else bar.first
        drawn.append(
            f"<g><title>{escape(bar.text)}</title>"
            f"{_bar(f'{bar.kind} waiting', across, bar.started, first, y)}"
            f"{_bar(bar.kind, across, first, bar.finished, y)}</g>"
        )
    frame = _frame(title, height, across, None, "seconds", "", "".join(drawn))
    legend = "".join(f'<li><span class="key {kind}"></span>{told}</li>' for kind, told in KINDS)
    return f'<figure><figcaption>{escape(title)}</figcaption>{frame}<ul class="legend">{legend}</ul></figure>'


def _bar(kind: str, across: Axis, begin: float, end: float, y: int) -> str:
    x, width = across.place(begin), max(0.0, across.place(end) - across.place(begin))
    return f'<rect class="{escape(kind)}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"/>'


def _line(series: Series, colour: int, across: Axis, up: Axis, *, dots: bool) -> str:
    places = [(across.place(x), up.place(y)) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    line = f'<polyline class="line c{colour}" points="{path}"/>'
    if not dots and len(places) > 1:
        return line
    marks = (
        f'<circle class="dot c{colour}" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="3.5">'
        f"<title>{escape(series.name)}: {x:.6g}, {y:.6g}</title></circle>"
        for place, (x, y) in zip(places, series.points, strict=True)
    )
    return line + "".join(marks)


def _frame(title: str, height: int, across: Axis, up: Axis | None, x: str, y: str, drawn: str) -> str:
    floor = height - BOTTOM
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f'<line class="axis" x1="{LEFT}" y1="{floor}" x2="{WIDTH - RIGHT}" y2="{floor}"/>',
    ]
    for tick in across.ticks:
        place = across.place(tick)
        parts.append(f'<line class="grid" x1="{place:.1f}" y1="{TOP}" x2="{place:.1f}" y2="{floor}"/>')
        parts.append(f'<text x="{place:.1f}" y="{floor + 16}" text-anchor="middle">{tick:.6g}</text>')
    for tick in up.ticks if up is not None else ():
        place = up.place(tick) if up is not None else 0.0
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{place:.1f}" x2="{WIDTH - RIGHT}" y2="{place:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{tick:.6g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 8}" text-anchor="middle">{escape(x)}</text>')
    if y:
        middle = (TOP + floor) / 2
        turned = f'transform="rotate(-90 14 {middle})"'
        parts.append(f'<text x="14" y="{middle}" text-anchor="middle" {turned}>{escape(y)}</text>')
    return "".join([*parts, drawn, "</svg>"])

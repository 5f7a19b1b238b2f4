"""Axes, curves and the HTML report."""

import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.cli.bench.answer import Answer, Failure, Left, Outcome
from pomona.cli.bench.axis import axis
from pomona.cli.bench.load import Load, Target
from pomona.cli.bench.measure import Recorded
from pomona.cli.bench.metrics import summarise
from pomona.cli.bench.mixture import Mixture
from pomona.cli.bench.page import Page
from pomona.cli.bench.plots import CURVE_POINTS, TIMELINE_REQUESTS, bars, curve, distribution_plots, sweep_plots
from pomona.cli.bench.running import Sweep
from pomona.cli.bench.slo import Slo
from pomona.cli.bench.svg import Plot, Series, line_plot, timeline

EVIL = '<script>alert("&")</script>'
SLO = Slo(ttft_ms=1500.0)


def answer(started: float, *deltas: float) -> Answer:
    return Answer(
        started=started, deltas=deltas, finished=deltas[-1], prompt_tokens=1, completion_tokens=4, finish="length"
    )


def outcomes() -> tuple[Outcome, ...]:
    return (
        answer(10.0, 11.0, 11.5),
        answer(11.0, 13.0, 13.5, 14.5),
        Failure(started=12.0, finished=13.0, reason=EVIL),
        Left(started=12.5, deltas=(13.0,), finished=13.0),
    )


def recorded(streams: int = 2, *, rate: float | None = None) -> Recorded:
    return Recorded(result=summarise(outcomes(), streams, rate=rate, slo=SLO), outcomes=outcomes())


def page(*loads: Recorded, interrupted: bool = False) -> str:
    load = Load(concurrency=1, requests=1, max_tokens=Mixture.of(8), prompt_words=Mixture.of(4), seed=EVIL)
    target = Target(url=f"http://127.0.0.1/{EVIL}", model=EVIL)
    return Page(target, Sweep(load=load, slo=SLO), loads, interrupted=interrupted).render()


@given(st.lists(st.floats(0, 1e9), max_size=20))
def test_every_value_lies_on_its_axis_and_ticks_are_even(values: list[float]) -> None:
    drawn = axis(values, start=300.0, end=10.0)
    assert all(10.0 - 1e-6 <= drawn.place(value) <= 300.0 for value in values)
    assert 2 <= len(drawn.ticks) <= 8
    assert drawn.ticks[0] == 0
    assert drawn.ticks[-1] == pytest.approx(drawn.top)
    steps = [later - earlier for earlier, later in zip(drawn.ticks, drawn.ticks[1:], strict=False)]
    assert steps == pytest.approx([steps[0]] * len(steps))


def test_an_axis_ends_at_a_round_number() -> None:
    assert axis([7.3], start=0, end=1).ticks == (0, 2, 4, 6, 8)
    assert axis([], start=0, end=1).top == 1.0
    assert axis([5e-324], start=0, end=1).top == 1.0
    assert axis([math.inf, 3.0], start=0, end=1).top == 3.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=500))
def test_a_distribution_ascends_to_the_greatest_value(values: list[float]) -> None:
    points = curve(values)
    assert len(points) <= CURVE_POINTS
    assert list(points) == sorted(points)
    assert points[-1] == (pytest.approx(max(values) * 1e3), 1.0)


def test_no_value_has_no_distribution() -> None:
    assert curve([]) == ()
    assert line_plot(Plot(title="t", x="x", y="y", series=(Series(name="s", points=()),))) == ""


def test_a_plot_has_a_line_for_each_series_and_a_mark_for_each_point() -> None:
    series = (Series(name="p50", points=((1, 2.0), (8, 4.0))), Series(name=EVIL, points=((1, 3.0), (8, 9.0))))
    figure = ElementTree.fromstring(line_plot(Plot(title=EVIL, x="streams", y="ms", series=series)))
    assert len(figure.findall(".//polyline")) == 2
    assert [title.text for title in figure.findall(".//circle/title")] == [
        *("p50: 1, 2", "p50: 8, 4"),
        *(f"{EVIL}: 1, 3", f"{EVIL}: 8, 9"),
    ]
    first, last = (figure.findall(".//circle")[number].attrib for number in (0, 3))
    assert float(first["cx"]) < float(last["cx"])
    assert float(first["cy"]) > float(last["cy"])


def test_the_timeline_shows_waiting_and_answering_and_how_each_request_ended() -> None:
    found = bars(outcomes())
    assert [(bar.kind, bar.started, bar.first, bar.finished) for bar in found] == [
        ("answer", 0.0, 1.0, 1.5),
        ("answer", 1.0, 3.0, 4.5),
        ("failure", 2.0, None, 3.0),
        ("left", 2.5, 3.0, 3.0),
    ]
    figure = ElementTree.fromstring(timeline("t", found))
    widths = [float(bar.attrib["width"]) for bar in figure.findall(".//rect")]
    assert len(widths) == 8
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert widths[5] == 0.0
    assert ["".join(item.itertext()) for item in figure.findall(".//li")][:2] == ["answered", "failed"]
    assert len(bars([answer(0.0, 1.0)] * (TIMELINE_REQUESTS + 5))) == TIMELINE_REQUESTS


def test_closed_and_open_loops_have_plots_of_their_own() -> None:
    closed, opened = recorded(2), recorded(2, rate=0.5)
    assert [plot.title for plot in sweep_plots([closed.result])] == ["Throughput", "TTFT", "Gap between deltas"]
    first, ttft, _ = sweep_plots([opened.result])
    assert first.title == "Open loop: offered and achieved"
    assert opened.result.offered_per_s is not None
    assert opened.result.goodput is not None
    x = opened.result.offered_per_s
    assert [(series.name, series.points) for series in first.series] == [
        ("offered", ((x, x),)),
        ("ended", ((x, opened.result.ended_per_s),)),
        ("met the SLO", ((x, opened.result.goodput.per_s),)),
    ]
    assert opened.result.ttft_ms is not None
    assert [series.points[0][1] for series in ttft.series] == [
        *(opened.result.ttft_ms.p50, opened.result.ttft_ms.p90, opened.result.ttft_ms.p95, opened.result.ttft_ms.p99),
    ]
    ttfts, gaps = distribution_plots([closed])
    assert ttfts.series[0].points == ((1000.0, 0.0), (2000.0, 1.0))
    assert gaps.series[0].points == ((500.0, 0.0), (500.0, 0.5), (1000.0, 1.0))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "action")]


def test_the_page_runs_no_script_needs_no_network_and_escapes_what_comes_from_outside() -> None:
    text = page(recorded(2), recorded(8), recorded(8, rate=0.5), interrupted=True)
    tags = Tags()
    tags.feed(text)
    assert "script" not in tags.tags
    assert tags.links == []
    assert not re.search(r"url\(|@import|<link", text)
    assert text.count("&lt;script&gt;") >= 4
    assert tags.tags.count("details") == 3
    assert tags.tags.count("tr") == 4
    assert "prefers-color-scheme:dark" in text
    assert "interrupted" in text


def test_a_page_without_a_load_is_still_a_page() -> None:
    assert page().endswith("</html>\n")

"""The tables, on a terminal of 80 columns."""

import dataclasses
import io

from rich.console import Console
from rich.table import Table

from pomona.cli.bench.answer import Answer, Left
from pomona.cli.bench.comparison import conclude
from pomona.cli.bench.limits import Decode, Side, WidthRun
from pomona.cli.bench.limits import conclude as conclude_limits
from pomona.cli.bench.metrics import summarise
from pomona.cli.bench.plan import Contender, Plan
from pomona.cli.bench.quantile import percentiles_ms
from pomona.cli.bench.report import comparison_table, limit_table, load_table
from pomona.cli.bench.slo import Slo
from tests.cli.bench.test_comparison import ENVIRONMENT, measured
from tests.cli.bench.test_limits import PLAN as LIMIT


def text(table: Table) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_load_is_one_line_with_nothing_cut_off() -> None:
    answer = Answer(
        started=0.0, deltas=(12.345, 20.0), finished=30.345, prompt_tokens=1, completion_tokens=10, finish="stop"
    )
    (line,) = (line for line in text(load_table([summarise([answer], 16)])).splitlines() if "12345" in line)
    cells = " ".join(line.split())
    assert cells == "16 1 0 0.33 12345/12345 2000/2000 7655/7655"


def test_an_interrupted_load_says_so() -> None:
    assert "4 (interrupted)" in text(load_table([summarise([], 4, interrupted=True)]))


def test_a_comparison_has_a_line_for_each_level_and_one_for_the_single_stream() -> None:
    loads = [measured(turn, Contender.POMONA, 1.0) for turn in range(3)]
    loads += [measured(turn, Contender.MLX_LM, 2.0) for turn in range(3)]
    comparison = conclude(ENVIRONMENT, Plan(streams=(2, 16)), loads, interrupted=False)
    lines = [" ".join(line.split()) for line in text(comparison_table(comparison)).splitlines()]
    assert "2, tokens/s 101.0 101.0 101.0 50.5 50.5 50.5 2.00 2.00-2.00" in lines
    assert "16, tokens/s - - - -" in lines
    assert any(line.startswith("1, ms/token") for line in lines)


def test_limits_are_one_line_for_each_width_with_what_is_missing_left_open() -> None:
    runs = [
        WidthRun(
            round=turn,
            side=side,
            width=16,
            prompt_tokens=1,
            completion_tokens=100,
            wall_s=wall,
            tokens_per_s=100 / wall,
            decode=Decode(seconds=wall, tokens=90, tokens_per_s=1234.5 / wall, step_ms=12.345 * wall),
            added_ms=percentiles_ms([-0.0012, 0.0123]) if side is Side.POMONA else None,
        )
        for turn in range(3)
        for side, wall in ((Side.BARE, 1.0), (Side.POMONA, 1.25))
    ]
    limits = conclude_limits(ENVIRONMENT, dataclasses.replace(LIMIT, widths=(16, 32)), runs, interrupted=False)
    lines = [" ".join(line.split()) for line in text(limit_table(limits)).splitlines()]
    assert "16 12.35 1234.5 987.6 0.80 0.80-0.80 0.80 5.5/12.2" in lines
    assert "32 - - - - - - -/-" in lines


def test_an_open_loop_and_its_goodput_fit_on_a_line() -> None:
    answers = [
        Answer(
            started=start,
            deltas=(start + 2.0,),
            finished=start + 3.0,
            prompt_tokens=1,
            completion_tokens=900,
            finish="stop",
        )
        for start in (0.0, 1.0, 2.0)
    ]
    left = Left(started=0.0, deltas=(), finished=1.0)
    results = [
        summarise(answers, 16, slo=Slo(ttft_ms=1.0)),
        summarise([*answers, left], 16, rate=1.5, load_percent=120.0, slo=Slo(ttft_ms=3000.0)),
    ]
    lines = [" ".join(line.split()) for line in text(load_table(results)).splitlines()]
    assert "16 3 0 0 - 0.60 540 2000/2000 1/1 - 0%" in lines
    assert "120 % 3 0 1 1.50 0.80 540 2000/2000 1/1 - 100%" in lines

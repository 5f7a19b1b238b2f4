"""The tables, on a terminal of 80 columns."""

import io

from rich.console import Console
from rich.table import Table

from pomona.cli.bench.answer import Answer
from pomona.cli.bench.comparison import conclude
from pomona.cli.bench.metrics import summarise
from pomona.cli.bench.plan import Contender, Plan
from pomona.cli.bench.report import comparison_table, load_table
from tests.cli.bench.test_comparison import ENVIRONMENT, measured


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

"""`bench limit` with the real Pomona and the tiny model."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import psutil
import pytest
from typer.testing import CliRunner, Result

from pomona.cli.bench import bench_app
from pomona.cli.bench.limits import Limits, Side
from pomona.cli.bench.tiny import build_tiny

LIMIT = ("limit", "--max-tokens", "12", "--prompt-words", "4", "--ready-timeout", "120")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(bench_app, list(arguments), standalone_mode=False)


def test_limit_runs_both_sides_in_turn_and_prints_their_ratios(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    result = bench(*LIMIT, "--tiny", "--widths", "1,3", "--rounds", "2", "--out", str(out))
    assert result.return_value == 0, result.output
    limits = msgspec.json.decode(result.stdout, type=Limits)
    assert limits == msgspec.json.decode(out.read_bytes(), type=Limits)
    bare, pomona = Side.BARE, Side.POMONA
    order = [(0, 1, bare), (0, 1, pomona), (0, 3, bare), (0, 3, pomona)]
    order += [(1, 3, pomona), (1, 3, bare), (1, 1, pomona), (1, 1, bare)]
    assert [(run.round, run.width, run.side) for run in limits.runs] == order
    assert {run.completion_tokens for run in limits.runs if run.width == 3} == {36}
    prompts = {(run.round, run.width, run.prompt_tokens) for run in limits.runs}
    assert len(prompts) == 4, "both sides of a pair have the same prompts"
    for line in limits.lines:
        assert line.whole is not None
        assert len(line.whole.rounds) == 2
    assert limits.lines[0].decode is not None
    assert limits.lines[0].added_p99_ms is not None
    assert (limits.errors, limits.interrupted) == (0, False)
    assert "bare" in result.stderr


def test_limit_without_a_server_measures_the_bare_loop_alone(tmp_path: Path) -> None:
    folder = build_tiny(tmp_path / "tiny")
    result = bench(*LIMIT, "--no-server", "--loader", "pomona", "--widths", "2", "--rounds", "1", str(folder))
    assert result.return_value == 0, result.output
    limits = msgspec.json.decode(result.stdout, type=Limits)
    assert [run.side for run in limits.runs] == [Side.BARE]
    assert limits.lines[0].bare_step_ms is not None
    assert (limits.lines[0].pomona_step_ms, limits.lines[0].decode) == (None, None)


@pytest.mark.parametrize("command", ["limit", "compare"])
def test_a_model_and_the_tiny_one_at_once_are_refused(command: str) -> None:
    assert str(bench(command, "--tiny", "plum").exception) == (
        "--tiny makes a model of its own: leave out plum, or --tiny"
    )


def test_an_interrupt_gives_the_rounds_so_far_and_leaves_no_process() -> None:
    command = "import sys; from pomona.cli.bench import bench_app; sys.exit(bench_app(standalone_mode=False))"
    process = subprocess.Popen(
        [sys.executable, "-c", command, *LIMIT, "--tiny", "--widths", "2", "--rounds", "10000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    watchdog = threading.Timer(150, process.kill)
    watchdog.start()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(b"round 2 "):
                break
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= 5
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    assert process.returncode == 130
    limits = msgspec.json.decode(output, type=Limits)
    assert limits.interrupted
    assert len(limits.runs) >= 2
    assert limits.lines[0].whole is not None
    assert b"Traceback" not in errors
    _, alive = psutil.wait_procs(started, timeout=5)
    assert [left for left in alive if left.status() != psutil.STATUS_ZOMBIE] == []

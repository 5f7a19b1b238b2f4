"""The commands as a user sees them: JSON on standard output, the rest on standard error, exit codes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from pomona.cli.bench import bench_app
from pomona.cli.bench.options import amounts, counts
from pomona.cli.bench.running import Measurements
from tests.cli.bench.stub import Stub

COMMAND = "import sys; from pomona.cli.bench import bench_app; sys.exit(bench_app(standalone_mode=False))"


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(bench_app, list(arguments), standalone_mode=False)


def test_serve_prints_one_load_for_each_level_as_json(stub: Stub, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    result = bench("serve", "--url", stub.url, "--concurrency", "2,1", "--max-tokens", "5", "--out", str(out))
    assert result.return_value == 0, result.output
    measured = msgspec.json.decode(result.stdout, type=Measurements)
    assert [(load.concurrency, load.requests, load.errors) for load in measured.loads] == [(1, 4, 0), (2, 4, 0)]
    assert [load.completion_tokens for load in measured.loads] == [20, 20]
    assert measured.loads[0].ttft_ms is not None
    assert not measured.interrupted
    assert json.loads(out.read_text()) == json.loads(result.stdout)
    assert "tokens/s" in result.stderr
    assert "tokens/s" not in result.stdout


def test_the_warm_up_is_not_counted(stub: Stub) -> None:
    result = bench("serve", "--url", stub.url, "--concurrency", "3", "--requests", "5", "--max-tokens", "40")
    assert msgspec.json.decode(result.stdout, type=Measurements).loads[0].requests == 5
    assert [body["max_tokens"] for body in stub.bodies].count(40) == 5
    assert len(stub.bodies) == 8


def test_an_open_loop_is_offered_shares_of_what_the_widest_closed_one_reached(stub: Stub, tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    slo = ("--slo-ttft-ms", "60000", "--slo-gap-ms", "60000", "--slo-gap", "max", "--slo-tpot-ms", "60000")
    result = bench(
        *("serve", "--url", stub.url, "--streams", "1,2", "--load", "120,50", "--requests", "12", "--html", str(html)),
        *("--prompt-words", "4:0.5,30:0.5", *slo),
    )
    assert result.return_value == 0, result.output
    measured = msgspec.json.decode(result.stdout, type=Measurements)
    loads = measured.loads
    assert [(load.concurrency, load.load_percent) for load in loads[:2]] == [(1, None), (2, None)]
    capacity = loads[1].ended_per_s
    assert [load.load_percent for load in loads[2:]] == [50.0, 120.0]
    assert [load.rate for load in loads[2:]] == pytest.approx([capacity / 2, capacity * 1.2])
    assert [(load.requests, load.errors) for load in loads] == [(12, 0)] * 4
    assert all(load.goodput is not None and load.goodput.share == 1.0 for load in loads)
    assert "good" in result.stderr
    assert html.read_text().startswith("<!doctype html>")
    assert measured.sweep is not None
    assert str(measured.sweep.load.prompt_words) == "4:0.5,30:0.5"
    assert len({len(str(body["messages"]).split()) for body in stub.bodies}) == 2


def test_a_rate_alone_needs_no_closed_loop(stub: Stub) -> None:
    result = bench("serve", "--url", stub.url, "--rate", "100,200", "--requests", "4", "--max-tokens", "9")
    assert [load.rate for load in msgspec.json.decode(result.stdout, type=Measurements).loads] == [100.0, 200.0]
    assert [body["max_tokens"] for body in stub.bodies].count(9) == 8


def test_clients_that_leave_are_told_apart_and_are_no_failure(stub: Stub) -> None:
    result = bench(
        *("serve", "--url", stub.url, "--model", "chatty", "--streams", "2", "--requests", "6"),
        *("--max-tokens", "3", "--cancel", "1"),
    )
    assert result.return_value == 0
    (load,) = msgspec.json.decode(result.stdout, type=Measurements).loads
    assert (load.requests, load.errors, load.left) == (0, 0, 6)
    assert "left" in result.stderr


def test_a_server_that_answers_nothing_has_no_capacity(stub: Stub) -> None:
    result = bench("serve", "--url", stub.url, "--model", "refusing", "--streams", "1", "--load", "50")
    assert str(result.exception).startswith("--load: no request of the 1 streams ended well (HTTP 429")


def test_failed_requests_are_told_and_the_exit_code_says_so(stub: Stub) -> None:
    result = bench("serve", "--url", stub.url, "--model", "refusing", "--concurrency", "1", "--requests", "2")
    assert result.return_value == 1
    (load,) = msgspec.json.decode(result.stdout, type=Measurements).loads
    assert (load.requests, load.errors) == (0, 2)
    assert "the queue is full" in load.first_errors[0]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_gives_what_was_measured_so_far(stub: Stub, tmp_path: Path, kind: signal.Signals) -> None:
    html = tmp_path / "report.html"
    stub.answer_first = 5  # one warm-up and four requests; the load asks for ten
    arguments = ("serve", "--url", stub.url, "--model", "stuck", "--concurrency", "1,2", "--requests", "10")
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments, "--html", str(html)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert stub.stuck.wait(30)
        process.send_signal(kind)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    measured = msgspec.json.decode(output, type=Measurements)
    assert process.returncode == 130
    assert measured.interrupted
    assert [(load.concurrency, load.requests, load.interrupted) for load in measured.loads] == [(1, 4, True)]
    assert "1 (interrupted)" in html.read_text()
    assert b"Traceback" not in errors


def test_an_interrupted_warm_up_gives_no_load(stub: Stub) -> None:
    arguments = ("serve", "--url", stub.url, "--model", "stuck", "--concurrency", "2")
    process = subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.PIPE)
    try:
        assert stub.stuck.wait(30)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    measured = msgspec.json.decode(output, type=Measurements)
    assert (measured.loads, measured.interrupted) == ((), True)
    assert process.returncode == 130


def test_a_result_that_cannot_be_written_is_refused_before_the_run(stub: Stub, tmp_path: Path) -> None:
    for option in ("--out", "--html"):
        result = bench("serve", "--url", stub.url, option, str(tmp_path / "no" / "folder"))
        assert str(result.exception).startswith(f"{option} {tmp_path}")
        assert str(result.exception).endswith("No such file or directory; name a file in a folder that exists")
    assert stub.bodies == []


def test_compare_names_a_model_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POMONA_HOME", str(tmp_path))
    result = bench("compare", "plum")
    assert "no model 'plum' here" in str(result.exception)


def test_levels_are_ascending_without_repeats() -> None:
    assert counts("16, 1,8,8") == (1, 8, 16)


def test_amounts_are_ascending_and_may_be_parts() -> None:
    assert amounts("2,0.5,2") == (0.5, 2.0)
    assert amounts(None) == ()


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "nan", "1,inf"])
def test_amounts_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        amounts(text)


@pytest.mark.parametrize("text", ["", "1,,2", "two", "0,4", "-1", "1.5"])
def test_levels_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        counts(text)

"""Comparisons with the real mlx_lm and the real Pomona on a tiny model."""

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from pomona.cli.bench import bench_app
from pomona.cli.bench.compare import Bench, run_bare
from pomona.cli.bench.comparison import Comparison, Measured
from pomona.cli.bench.contenders import bare_command, clean_environment, mlx_lm_server, mlx_lm_target
from pomona.cli.bench.ground import Ground
from pomona.cli.bench.measure import measure
from pomona.cli.bench.models import find_target
from pomona.cli.bench.plan import Contender, Plan
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.progress import BenchProgress
from pomona.cli.bench.server import claim_port, serving
from tests.support.tiny_model import build_tiny_model

PLAN = Plan(streams=(1, 2), rounds=1, max_tokens=6, prompt_words=4, single_requests=2)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"), eos=0)


@pytest.fixture
def progress() -> BenchProgress:
    return BenchProgress(Console(file=io.StringIO()))


def test_mlx_lm_server_is_measured_and_its_model_list_does_not_crash(
    tiny: Path, tmp_path: Path, progress: BenchProgress
) -> None:
    env = clean_environment(os.environ, tmp_path, {})
    port = claim_port(0)
    with serving(mlx_lm_server(tiny, port, env, 60.0)):
        assert find_target(f"http://127.0.0.1:{port}", None, None).model == str(tiny)
        result = measure(mlx_lm_target(port), PLAN.load(0, 2), "tiny", progress)
    assert result.first_errors == ()
    assert result.requests == 4
    assert result.completion_tokens == sum(result.finish.values()) * 6


def test_a_bare_stream_counts_the_same_tokens_for_the_same_load(tiny: Path, tmp_path: Path) -> None:
    env = clean_environment(os.environ, tmp_path, {})
    result = run_bare(bare_command(tiny, PLAN.single_load(0)), env, 60.0)
    assert (result.requests, result.completion_tokens, result.concurrency) == (2, 12, 1)
    assert result.tpot_ms is not None
    assert result.tpot_ms.p50 > 0


def test_a_bare_stream_that_fails_is_one_line(tmp_path: Path) -> None:
    env = clean_environment(os.environ, tmp_path, {})
    with pytest.raises(BenchError, match=r"^stream_generate exited with 1: \S"):
        run_bare(bare_command(tmp_path / "nothing", PLAN.single_load(0)), env, 60.0)


def test_a_bare_stream_that_hangs_is_ended(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", "import time; time.sleep(60)")
    with pytest.raises(BenchError, match=r"stream_generate gave no result within 0\.3 s"):
        run_bare(argv, dict(os.environ), 0.3)


def test_a_server_that_cannot_load_its_model_ends_the_comparison_with_one_line(
    tmp_path: Path, progress: BenchProgress
) -> None:
    ground = Ground(
        folder=tmp_path / "nothing",
        env=clean_environment(os.environ, tmp_path, {}),
        scratch=tmp_path,
        port=0,
        ready_timeout_s=60.0,
        progress=progress,
    )
    bench = Bench(plan=PLAN, ground=ground)
    measured: list[Measured] = []
    with pytest.raises(BenchError, match=r"^mlx_lm\.server (cannot serve this model|failed in warm-up): .*nothing"):
        bench.run_turn(0, Contender.MLX_LM, measured)
    assert measured == []


COMPARE = ("compare", "--rounds", "1", "--max-tokens", "6", "--prompt-words", "4", "--ready-timeout", "120")


def test_compare_runs_all_contenders_on_one_model_and_prints_ratios(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    result = CliRunner().invoke(
        bench_app, [*COMPARE, "--streams", "1,2", "--out", str(out), str(tiny)], standalone_mode=False
    )
    assert result.return_value == 0, result.output
    comparison = msgspec.json.decode(result.stdout, type=Comparison)
    assert comparison == msgspec.json.decode(out.read_bytes(), type=Comparison)
    assert [line.concurrency for line in comparison.throughput] == [1, 2]
    assert all(line.ratio is not None and len(line.ratio.rounds) == 1 for line in comparison.throughput)
    assert comparison.single is not None
    assert comparison.single.ratio is not None
    assert (comparison.errors, comparison.interrupted) == (0, False)
    prompts = {measured.load.prompt_tokens for measured in comparison.loads if measured.single}
    assert len(prompts) == 1, "Pomona and the bare stream were given different prompts"
    ran = [(measured.contender, measured.single, measured.load.concurrency) for measured in comparison.loads]
    assert ran == [
        (Contender.BARE, True, 1),
        (Contender.POMONA, True, 1),
        (Contender.POMONA, False, 1),
        (Contender.POMONA, False, 2),
        (Contender.MLX_LM, False, 1),
        (Contender.MLX_LM, False, 2),
    ]


def test_an_interrupted_comparison_leaves_no_process_and_prints_what_it_has() -> None:
    command = "import sys; from pomona.cli.bench import bench_app; sys.exit(bench_app(standalone_mode=False))"
    process = subprocess.Popen(
        [sys.executable, "-c", command, *COMPARE, "--streams", "1", "--no-single", "--tiny"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    watchdog = threading.Timer(150, process.kill)
    watchdog.start()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if b"warm-up" in line:
                break
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= 4
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    assert process.returncode == 130
    comparison = msgspec.json.decode(output, type=Comparison)
    assert comparison.interrupted
    assert comparison.throughput[0].ratio is None
    assert b"Traceback" not in errors
    _, alive = psutil.wait_procs(started, timeout=5)
    assert [left for left in alive if left.status() != psutil.STATUS_ZOMBIE] == []

"""`bench speculation` with the real servers and the tiny model."""

from pathlib import Path

import msgspec
from typer.testing import CliRunner, Result

from pomona.cli.bench import bench_app
from pomona.cli.bench.speculations import Speculations, Way
from pomona.cli.bench.tasks import Task

SPECULATION = ("speculation", "--tiny", "--max-tokens", "12", "--prompt-words", "12", "--ready-timeout", "120")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(bench_app, [*SPECULATION, *arguments], standalone_mode=False)


def test_the_same_requests_are_answered_in_each_way_in_turn(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    result = bench("--tasks", "copy,chat-sampled", "--widths", "1,2", "--rounds", "2", "--compare", "--out", str(out))
    assert result.return_value == 0, result.output
    shown = msgspec.json.decode(result.stdout, type=Speculations)
    assert shown == msgspec.json.decode(out.read_bytes(), type=Speculations)
    assert (shown.errors, shown.interrupted) == (0, False)
    order = [
        (task, width, way)
        for task in (Task.COPY, Task.CHAT_SAMPLED)
        for width in (1, 2)
        for way in (Way.OFF, Way.AUTO, Way.NGRAM, *((Way.MLX_LM,) if task is Task.COPY else ()))
    ]
    assert [(run.task, run.width, run.way) for run in shown.runs] == order + order[::-1]
    assert [(line.task, line.width, line.way) for line in shown.lines] == order
    for line in shown.lines:
        assert line.decode_tokens_per_s is not None
        assert (line.ratio is None) is (line.way is Way.OFF)
        assert (line.over_mlx_lm is None) is (line.way is Way.MLX_LM or line.task is not Task.COPY)
        assert line.way is Way.MLX_LM or line.changed == 0
    assert {run.accepted for run in shown.runs if run.way is Way.OFF} == {0}
    assert "other" in result.stderr


def test_a_way_that_the_model_lacks_is_named() -> None:
    result = bench("--tasks", "copy", "--widths", "1", "--rounds", "1", "--ways", "mtp")
    assert str(result.exception) == "--ways: this model does not have mtp; it has ngram"

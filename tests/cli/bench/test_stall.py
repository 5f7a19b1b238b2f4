"""`bench stall`: the figures, and the command with the real Pomona and the tiny model."""

import msgspec
import pytest
from typer.testing import CliRunner

from pomona.cli.bench import bench_app
from pomona.cli.bench.answer import Answer
from pomona.cli.bench.stalls import Stalls, stall_of


def answer(started: float, first: float) -> Answer:
    return Answer(
        started=started, deltas=(first,), finished=first, prompt_tokens=900, completion_tokens=1, finish="length"
    )


def test_gaps_count_from_the_moment_the_prompt_is_sent_to_its_first_token() -> None:
    streams = [[0.0, 1.0, 2.0, 3.5, 8.5, 9.0, 30.0], [0.5, 1.5, 2.5, 5.0, 9.5]]
    stall = stall_of(0, answer(0.0, 4.0), answer(3.0, 9.0), streams, sent=3.0)
    assert (stall.alone_ttft_ms, stall.beside_ttft_ms, stall.step_ms) == (4000, 6000, 1000)
    assert stall.longest_gap_ms == 5000
    assert stall.meanwhile_tokens_per_s == round(4 / 6, 3)


def test_a_stream_that_ended_before_the_prompts_first_token_spoils_the_round() -> None:
    with pytest.raises(ValueError, match="did not run all the time"):
        stall_of(0, answer(0.0, 4.0), answer(3.0, 9.0), [[0.0, 1.0, 10.0], [0.0, 1.0, 8.9]], sent=3.0)


def test_a_long_prompt_beside_streams_is_measured() -> None:
    arguments = ["stall", "--tiny", "--rounds", "2", "--streams", "2", "--prompt-words", "300", "--stall-s", "0.05"]
    result = CliRunner().invoke(bench_app, [*arguments, "--ready-timeout", "120"], standalone_mode=False)
    assert result.return_value == 0, result.output
    stalls = msgspec.json.decode(result.stdout, type=Stalls)
    assert [run.round for run in stalls.runs] == [0, 1]
    assert all(run.prompt_tokens > 300 for run in stalls.runs)
    assert stalls.ttft is not None
    assert stalls.stall is not None
    assert (len(stalls.ttft.rounds), len(stalls.stall.rounds), stalls.interrupted) == (2, 2, False)
    assert "longest gap" in result.stderr

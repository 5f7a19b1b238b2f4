"""The bare loop on the tiny model: it computes what mlx-lm computes, alone and in a batch."""

import os
from pathlib import Path

import pytest

from pomona.cli.bench.environment import weight_types
from pomona.cli.bench.floor import Floor, FloorTask, Loader
from pomona.cli.bench.floor_process import floor_process
from pomona.cli.bench.problem import BenchError
from pomona.cli.bench.tiny import build_tiny

PROMPTS = ("one", "a prompt of quite another length", "of some length")
STEPS = 12


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"))


def rows(floor: Floor, *prompts: str) -> list[tuple[int, ...]]:
    run = floor.run(FloorTask(prompts=prompts, max_tokens=STEPS))
    assert len(run.steps) == len(run.tokens) == STEPS
    assert list(run.steps) == sorted(run.steps)
    assert run.steps[0] > 0
    return list(zip(*run.tokens, strict=True))


@pytest.mark.parametrize("loader", Loader)
def test_rows_of_unlike_lengths_choose_in_a_batch_what_they_choose_alone(tiny: Path, loader: Loader) -> None:
    floor = Floor(tiny, loader)
    assert rows(floor, *PROMPTS) == [rows(floor, prompt)[0] for prompt in PROMPTS]


def test_a_row_chooses_what_stream_generate_does(tiny: Path) -> None:
    from mlx_lm import load, stream_generate

    model, tokenizer, *_ = load(str(tiny))
    messages = [{"role": "user", "content": PROMPTS[1]}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    pieces = list(stream_generate(model, tokenizer, prompt, max_tokens=STEPS))
    assert rows(Floor(tiny, Loader.MLX_LM), PROMPTS[1]) == [tuple(piece.token for piece in pieces)]


def test_every_token_that_the_tiny_model_chooses_is_text_and_none_ends_it(tiny: Path) -> None:
    from pomona.workers.models.load import load_tokenizer

    tokenizer = load_tokenizer(tiny)
    chosen = {token for row in rows(Floor(tiny, Loader.MLX_LM), *PROMPTS) for token in row}
    assert len(chosen) > STEPS / 2
    assert chosen.isdisjoint(tokenizer.eos_token_ids)
    assert all(tokenizer.decode([token]).isascii() for token in chosen)
    assert weight_types(tiny) == "F32"


def test_the_tiny_model_is_the_same_every_time(tiny: Path, tmp_path: Path) -> None:
    again = build_tiny(tmp_path / "again")
    for file in sorted(tiny.iterdir()):
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name


def test_the_process_answers_task_after_task_and_is_gone_at_the_end(tiny: Path) -> None:
    with floor_process(tiny, Loader.MLX_LM, dict(os.environ)) as floor:
        runs = [floor.run(FloorTask(prompts=PROMPTS[:width], max_tokens=4), 60.0) for width in (1, 3, 1)]
        process = floor.process
    assert [len(run.tokens[0]) for run in runs] == [1, 3, 1]
    assert runs[0].tokens == runs[2].tokens
    assert process.returncode is not None


def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(BenchError, match=r"^the bare loop exited with 1: \S"),
        floor_process(tmp_path / "nothing", Loader.MLX_LM, dict(os.environ)) as floor,
    ):
        floor.run(FloorTask(prompts=PROMPTS, max_tokens=4), 60.0)


def test_a_loop_that_is_late_is_given_up(tiny: Path) -> None:
    with (
        pytest.raises(BenchError, match=r"^the bare loop gave no result within 0\.01 s$"),
        floor_process(tiny, Loader.MLX_LM, dict(os.environ)) as floor,
    ):
        floor.run(FloorTask(prompts=PROMPTS, max_tokens=4), 0.01)

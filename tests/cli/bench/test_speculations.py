"""What speculation is asked, and the figures that follow from given answers."""

import dataclasses
from itertools import islice

import pytest
import typer

from pomona.cli.bench.answer import Answer, AnswerReader, Failure
from pomona.cli.bench.counters import DecodeCounters, read_decode
from pomona.cli.bench.options import words
from pomona.cli.bench.report import speculation_table
from pomona.cli.bench.speculations import DraftRun, SpeculationLine, SpeculationPlan, Way, conclude, run_of
from pomona.cli.bench.tasks import COPY, TEMPERATURE, Task, bodies, copies
from tests.cli.bench.test_comparison import ENVIRONMENT

PLAN = SpeculationPlan(
    tasks=(Task.COPY, Task.CHAT),
    widths=(1, 2),
    ways=(Way.NGRAM,),
    compare=False,
    rounds=2,
    max_tokens=8,
    words=10,
    depth=None,
    seed="0",
)


def answer(first: float, finished: float, tokens: int, text: str = "same", guessed: tuple[int, int] = (0, 0)) -> Answer:
    return Answer(
        started=0.0,
        deltas=(first, finished),
        finished=finished,
        prompt_tokens=3,
        completion_tokens=tokens,
        finish="length",
        text=text,
        accepted_tokens=guessed[0],
        rejected_tokens=guessed[1],
    )


def run(turn: int, way: Way, *answers: Answer | Failure, steps: DecodeCounters | None = None) -> DraftRun:
    return run_of(turn, Task.COPY, len(answers), way, answers, steps)


def line_of(way: Way, *runs: DraftRun) -> SpeculationLine:
    lines = conclude(ENVIRONMENT, PLAN, runs, interrupted=False).lines
    (line,) = (line for line in lines if (line.task, line.width, line.way) == (Task.COPY, runs[0].width, way))
    return line


def test_decoding_is_from_the_first_text_of_any_answer_to_the_end_of_the_last() -> None:
    batch = run(0, Way.OFF, answer(1.0, 5.0, 9, guessed=(3, 1)), answer(2.0, 6.0, 7, guessed=(2, 4)))
    assert (batch.tokens, batch.wall_s, batch.tokens_per_s) == (16, 6.0, round(16 / 6, 3))
    assert batch.decode_tokens_per_s == round(14 / 5, 3)
    assert (batch.accepted, batch.rejected) == (5, 5)
    assert run(0, Way.OFF, answer(1.0, 1.0, 1)).decode_tokens_per_s is None
    held_back = dataclasses.replace(answer(4.9, 5.0, 9), opened=1.0)
    assert run(0, Way.OFF, held_back).decode_tokens_per_s == 2.0
    assert run(0, Way.OFF, Failure(started=0.0, finished=1.0, reason="gone")).decode_tokens_per_s is None


def test_ratios_are_taken_against_off_round_by_round() -> None:
    runs = [
        run(0, Way.OFF, answer(1.0, 3.0, 9)),
        run(0, Way.NGRAM, answer(0.5, 2.5, 17)),
        run(1, Way.NGRAM, answer(1.0, 2.0, 9)),
        run(1, Way.OFF, answer(1.0, 3.0, 9)),
    ]
    line = line_of(Way.NGRAM, *runs)
    assert line.ratio is not None
    assert line.whole is not None
    assert (line.decode_tokens_per_s, line.ratio.rounds) == (8.0, (2.0, 2.0))
    assert line.whole.rounds == (round(6.8 / 3, 4), 1.5)
    off = line_of(Way.OFF, *runs)
    assert (off.ratio, off.whole, off.decode_tokens_per_s) == (None, None, 4.0)


def test_a_failed_request_takes_its_batch_out_of_the_ratios() -> None:
    gone = Failure(started=0.0, finished=1.0, reason="HTTP 503")
    runs = [run(0, Way.OFF, answer(1.0, 3.0, 9), answer(1.0, 3.0, 9)), run(0, Way.NGRAM, answer(1.0, 2.0, 9), gone)]
    result = conclude(ENVIRONMENT, PLAN, runs, interrupted=True)
    assert (result.errors, result.interrupted, runs[1].first_errors) == (1, True, ("HTTP 503",))
    assert line_of(Way.NGRAM, *runs).ratio is None


def test_answers_that_are_not_those_of_off_are_counted() -> None:
    off = run(0, Way.OFF, answer(1.0, 3.0, 9, "a"), answer(1.0, 3.0, 9, "b"))
    assert line_of(Way.NGRAM, off, run(0, Way.NGRAM, answer(1.0, 3.0, 9, "a"), answer(1.0, 3.0, 9, "c"))).changed == 1
    assert line_of(Way.NGRAM, off, run(0, Way.NGRAM, answer(1.0, 3.0, 9, "a"), answer(1.0, 3.0, 9, "b"))).changed == 0
    assert line_of(Way.NGRAM, off, run(1, Way.NGRAM, answer(1.0, 3.0, 9, "x"), answer(1.0, 3.0, 9, "y"))).changed == 0


def test_the_workers_counters_tell_what_a_step_gained_and_what_it_cost() -> None:
    first = DecodeCounters(
        steps=10, rows=20, seconds=2.0, verify_steps=4, verify_seconds=1.2, saved=6, propose_seconds=0.02
    )
    second = DecodeCounters(steps=2, rows=4, seconds=0.2, saved=6)
    runs = [
        run(0, Way.NGRAM, answer(1.0, 3.0, 9, guessed=(5, 2)), steps=first),
        run(1, Way.NGRAM, answer(1.0, 3.0, 9, guessed=(1, 0)), steps=second),
    ]
    line = line_of(Way.NGRAM, *runs)
    assert (line.accepted_per_step, line.acceptance) == (0.5, 0.75)
    assert (line.verify_ms, line.plain_ms, line.propose_ms) == (300.0, 125.0, 5.0)
    bare = line_of(Way.OFF, run(0, Way.OFF, answer(1.0, 3.0, 9)))
    assert (bare.accepted_per_step, bare.acceptance, bare.verify_ms, bare.plain_ms) == (None, None, None, None)


def test_mlx_lm_is_what_the_others_are_compared_with() -> None:
    runs = [
        run(0, Way.OFF, answer(1.0, 3.0, 9)),
        run(0, Way.NGRAM, answer(1.0, 2.0, 9)),
        run(0, Way.MLX_LM, answer(1.0, 5.0, 9, "other")),
    ]
    lines = [line_of(way, *runs) for way in (Way.OFF, Way.NGRAM, Way.MLX_LM)]
    assert [line.over_mlx_lm and line.over_mlx_lm.median for line in lines] == [2.0, 4.0, None]
    assert lines[2].ratio is not None
    assert lines[2].ratio.median == 0.5
    shown = conclude(ENVIRONMENT, PLAN, runs, interrupted=False)
    assert len(speculation_table(shown).columns) == 1 + len(
        speculation_table(conclude(ENVIRONMENT, PLAN, runs[:2], interrupted=False)).columns
    )


def test_every_second_round_runs_backwards_and_mlx_lm_copies_only() -> None:
    ways = (Way.OFF, Way.NGRAM, Way.MLX_LM)
    forwards = PLAN.turns(0, ways)
    assert forwards[:3] == [(Task.COPY, 1, Way.OFF), (Task.COPY, 1, Way.NGRAM), (Task.COPY, 1, Way.MLX_LM)]
    assert forwards[-2:] == [(Task.CHAT, 2, Way.OFF), (Task.CHAT, 2, Way.NGRAM)]
    assert PLAN.turns(1, ways) == forwards[::-1]


def test_ways_are_auto_and_what_the_model_has_unless_they_are_named() -> None:
    every = dataclasses.replace(PLAN, ways=None, compare=True)
    assert every.among(["ngram", "grammar", "mtp"]) == (Way.OFF, Way.AUTO, Way.NGRAM, Way.MTP, Way.MLX_LM)
    assert PLAN.among(["ngram", "mtp"]) == (Way.OFF, Way.NGRAM)
    with pytest.raises(ValueError, match="this model does not have ngram; it has none"):
        PLAN.among([])


def test_words_are_members_in_their_own_order() -> None:
    assert words("chat, copy", tuple(Task)) == (Task.COPY, Task.CHAT)
    with pytest.raises(typer.BadParameter, match="'poem' is none of copy, copy-sampled, chat, chat-sampled"):
        words("copy,poem", tuple(Task))


def test_tasks_ask_the_same_again_for_the_same_seed_only() -> None:
    for task in Task:
        first, again, other = (bodies(task, 3, seed, 20, 8) for seed in ("a", "a", "b"))
        assert first == again
        prompts = [body["messages"][-1]["content"] for body in first + other]  # type: ignore[index]
        assert len(set(prompts)) == 6
        assert all(prompt.startswith(COPY) is task.copies for prompt in prompts)
        assert {body["temperature"] for body in first} == {TEMPERATURE if task.sampled else 0.0}
        assert len({body.get("seed") for body in first}) == (3 if task.sampled else 1)
        assert ("seed" in first[0]) is task.sampled


def test_lists_to_copy_have_words_enough_and_name_nothing_twice() -> None:
    for asked, example, wanted in islice(copies("s", 42), 20):
        assert asked["content"] == COPY + example["content"]
        lines = wanted["content"].removeprefix(COPY).splitlines()
        assert [line.split()[0] for line in lines] == [f"{number}." for number in range(1, 10)]
        assert {len(line.split()) for line in lines} == {5}
        assert len({line.split()[2] for line in lines}) == 9
    (*_, long) = next(copies("s", 500))
    assert len(long["content"].removeprefix(COPY).split()) == 500


METRICS = """# TYPE pomona_worker_decode_steps counter
pomona_worker_decode_steps_total{model="a",worker="a.0"} 30.0
# TYPE pomona_worker_decode_rows counter
pomona_worker_decode_rows_total{model="a",worker="a.0"} 50.0
# TYPE pomona_worker_decode_seconds counter
pomona_worker_decode_seconds_total{model="a",worker="a.0"} 1.5
# TYPE pomona_worker_verify_steps counter
pomona_worker_verify_steps_total{model="a",worker="a.0"} 8.0
# TYPE pomona_worker_verify_seconds counter
pomona_worker_verify_seconds_total{model="a",worker="a.0"} 0.5
# TYPE pomona_worker_saved_forwards counter
pomona_worker_saved_forwards_total{model="a",worker="a.0"} 9.0
# TYPE pomona_worker_speculation_propose_seconds counter
pomona_worker_speculation_propose_seconds_total{model="a",worker="a.0",method="ngram"} 0.25
pomona_worker_speculation_propose_seconds_total{model="a",worker="a.0",method="mtp"} 0.5
"""


def test_counters_of_decoding_are_read_and_subtracted() -> None:
    read = read_decode(METRICS)
    assert read == DecodeCounters(
        steps=30, rows=50, seconds=1.5, verify_steps=8, verify_seconds=0.5, saved=9, propose_seconds=0.75
    )
    assert (read - read) == read_decode("") == DecodeCounters()
    assert read + DecodeCounters() == read


def test_what_was_guessed_is_read_from_the_usage() -> None:
    def read(details: str) -> tuple[int, int]:
        reader = AnswerReader(0.0)
        reader.feed('data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}', 0.5)
        reader.feed('data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}', 1.0)
        reader.feed('data: {"choices": [], "usage": {"completion_tokens": 4' + details + "}}", 2.0)
        outcome = reader.outcome(3.0)
        assert isinstance(outcome, Answer)
        assert (outcome.opened, outcome.deltas) == (0.5, (1.0,))
        return outcome.accepted_tokens, outcome.rejected_tokens

    told = ', "completion_tokens_details": {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 5}'
    assert read(told) == (2, 5)
    assert read("") == (0, 0)
    assert read(', "completion_tokens_details": {"accepted_prediction_tokens": null}') == (0, 0)

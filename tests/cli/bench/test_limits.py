"""The ratios to the bare loop, from given moments."""

import pytest

from pomona.cli.bench.answer import Answer, Failure
from pomona.cli.bench.counters import StepCounters, read_counters
from pomona.cli.bench.floor import FloorRun, Loader
from pomona.cli.bench.limits import LimitPlan, Side, WidthRun, conclude, of_floor, of_outcomes
from tests.cli.bench.test_comparison import ENVIRONMENT

PLAN = LimitPlan(widths=(1, 2), rounds=2, max_tokens=5, prompt_words=4, server=True, loader=Loader.MLX_LM, seed="0")


def floor(turn: int, width: int, *steps: float) -> WidthRun:
    tokens = tuple((0,) * width for _ in steps)
    return of_floor(turn, width, FloorRun(steps=steps, prompt_tokens=7, tokens=tokens))


def answer(*deltas: float, started: float = 0.0, tokens: int | None = None) -> Answer:
    return Answer(
        started=started,
        deltas=deltas,
        finished=deltas[-1],
        prompt_tokens=3,
        completion_tokens=tokens or len(deltas),
        finish="length",
    )


def test_the_bare_loop_decodes_from_its_first_step_to_its_last() -> None:
    run = floor(0, 4, 1.0, 1.5, 2.0)
    assert run.decode is not None
    assert (run.decode.seconds, run.decode.tokens, run.decode.tokens_per_s, run.decode.step_ms) == (1.0, 8, 8.0, 500.0)
    assert (run.completion_tokens, run.wall_s, run.tokens_per_s) == (12, 2.0, 6.0)
    assert floor(0, 4, 1.0).decode is None


def test_full_width_is_from_the_last_beginning_to_the_first_end() -> None:
    run = of_outcomes(0, 2, [answer(1.0, 2.0, 3.0, 4.0), answer(2.5, 3.0, 3.5, 5.0)], None)
    assert run.decode is not None
    assert (run.decode.seconds, run.decode.tokens, run.decode.step_ms) == (1.5, 4.0, 750.0)
    assert (run.completion_tokens, run.wall_s, run.tokens_per_s) == (8, 5.0, 1.6)
    assert run.added_ms is None


def test_a_delta_of_several_tokens_counts_as_so_many() -> None:
    run = of_outcomes(0, 1, [answer(1.0, 2.0, 3.0, tokens=9)], None)
    assert run.decode is not None
    assert run.decode.tokens == 6.0


def test_without_a_moment_at_full_width_there_is_no_decode_phase() -> None:
    assert of_outcomes(0, 2, [answer(1.0, 2.0), answer(2.0, 3.0)], None).decode is None


def test_a_failed_request_takes_its_batch_out_of_the_ratios() -> None:
    failed = of_outcomes(0, 2, [answer(1.0, 2.0, 3.0), Failure(started=0.0, finished=1.0, reason="HTTP 503")], 0.1)
    assert (failed.errors, failed.first_errors, failed.decode, failed.added_ms) == (1, ("HTTP 503",), None, None)
    limits = conclude(ENVIRONMENT, PLAN, [floor(0, 2, 1.0, 2.0), failed], interrupted=False)
    assert limits.errors == 1
    assert (limits.lines[1].decode, limits.lines[1].whole) == (None, None)


def test_what_a_gap_has_beyond_the_workers_step_is_told() -> None:
    run = of_outcomes(0, 1, [answer(0.0, 0.011, 0.023, 0.034)], 0.010)
    assert run.worker_step_ms == 10.0
    assert run.added_ms is not None
    assert (run.added_ms.p50, run.added_ms.max) == (1.0, 2.0)


def test_ratios_are_taken_round_by_round_where_both_sides_finished() -> None:
    runs = [
        floor(0, 1, 1.0, 2.0, 3.0),
        of_outcomes(0, 1, [answer(1.0, 3.0, 5.0)], 1.5),
        floor(1, 1, 1.0, 3.0, 5.0),
        of_outcomes(1, 1, [answer(1.0, 3.0, 5.0)], 1.5),
        floor(1, 2, 1.0, 2.0),
    ]
    first, second = conclude(ENVIRONMENT, PLAN, runs, interrupted=True).lines
    assert first.decode is not None
    assert first.decode.rounds == (0.5, 1.0)
    assert first.whole is not None
    assert first.whole.rounds == (0.6, 1.0)
    assert (first.bare_step_ms, first.pomona_step_ms) == (1500.0, 2000.0)
    assert (first.added_p50_ms, first.added_p99_ms) == (500.0, 500.0)
    assert (second.bare_tokens_per_s, second.pomona_tokens_per_s, second.decode) == (2.0, None, None)


def test_every_second_round_runs_backwards_and_both_sides_get_one_load() -> None:
    forwards = [(1, Side.BARE), (1, Side.POMONA), (2, Side.BARE), (2, Side.POMONA)]
    assert [PLAN.turns(turn) for turn in (0, 1, 2)] == [forwards, forwards[::-1], forwards]
    load = PLAN.load("round 0", 2, 5)
    assert (load.requests, load.concurrency, load.ignore_eos) == (2, 2, True)
    prompts = [one.prompt for turn in (0, 1) for width in (1, 2) for one in PLAN.load(turn, width, 5).asks]
    assert len(set(prompts)) == 6


def test_without_a_server_only_the_bare_loop_runs() -> None:
    plan = LimitPlan(
        widths=(1, 8), rounds=1, max_tokens=5, prompt_words=4, server=False, loader=Loader.POMONA, seed="0"
    )
    assert plan.turns(0) == [(1, Side.BARE), (8, Side.BARE)]


METRICS = """# TYPE pomona_worker_decode_steps counter
pomona_worker_decode_steps_total{model="a",worker="a.0"} 30.0
pomona_worker_decode_steps_total{model="b",worker="b.0"} 10.0
# TYPE pomona_worker_decode_seconds counter
pomona_worker_decode_seconds_total{model="a",worker="a.0"} 1.5
"""


def test_the_workers_step_is_the_difference_of_two_scrapes() -> None:
    counters = read_counters(METRICS)
    assert counters == StepCounters(steps=40.0, seconds=1.5)
    assert counters.step_s(StepCounters(steps=20.0, seconds=1.0)) == pytest.approx(0.025)
    assert counters.step_s(counters) is None
    assert read_counters("") == StepCounters(steps=0.0, seconds=0.0)

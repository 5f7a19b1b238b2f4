import msgspec

from pomona.cli.bench.answer import Answer, Failure
from pomona.cli.bench.comparison import Comparison, Environment, Measured, conclude
from pomona.cli.bench.metrics import summarise
from pomona.cli.bench.plan import Contender, Plan
from pomona.cli.bench.report import as_json

ENVIRONMENT = Environment(
    pomona="0.1.0",
    mlx_lm="1",
    mlx="1",
    python="3.11",
    platform="any",
    cpus=2,
    device="Device(cpu, 0)",
    blas=None,
    model="tiny",
    weights="F32",
)
PLAN = Plan(streams=(2,), rounds=2)


def measured(turn: int, contender: Contender, seconds: float, *, single: bool = False, failures: int = 0) -> Measured:
    answer = Answer(
        started=0.0, deltas=(0.0,), finished=seconds, prompt_tokens=1, completion_tokens=101, finish="length"
    )
    outcomes = [answer, *(Failure(started=0.0, finished=0.0, reason="no") for _ in range(failures))]
    return Measured(round=turn, contender=contender, single=single, load=summarise(outcomes, 1 if single else 2))


def test_throughput_is_compared_round_by_round() -> None:
    loads = [
        measured(0, Contender.POMONA, 1.0),
        measured(0, Contender.MLX_LM, 2.0),
        measured(1, Contender.MLX_LM, 1.0),
        measured(1, Contender.POMONA, 1.0),
    ]
    (line,) = conclude(ENVIRONMENT, PLAN, loads, interrupted=False).throughput
    assert line.pomona == (101.0, 101.0)
    assert line.mlx_lm == (50.5, 101.0)
    assert line.ratio is not None
    assert line.ratio.rounds == (2.0, 1.0)
    assert line.ratio.median == 1.5


def test_the_single_stream_is_compared_by_time_per_token_and_kept_out_of_throughput() -> None:
    loads = [measured(0, Contender.BARE, 1.0, single=True), measured(0, Contender.POMONA, 1.1, single=True)]
    comparison = conclude(ENVIRONMENT, PLAN, loads, interrupted=False)
    assert comparison.single is not None
    assert comparison.single.pomona == (11.0,)
    assert comparison.single.stream_generate == (10.0,)
    assert comparison.single.ratio is not None
    assert comparison.single.ratio.median == 1.1
    assert comparison.whole is not None
    assert comparison.whole.pomona == (10.891,)
    assert comparison.whole.stream_generate == (9.901,)
    assert comparison.throughput[0].ratio is None


def test_without_single_streams_there_is_no_such_result() -> None:
    comparison = conclude(ENVIRONMENT, Plan(single=False), [], interrupted=False)
    assert (comparison.single, comparison.whole) == (None, None)


def test_a_round_that_one_side_did_not_finish_gives_no_ratio() -> None:
    loads = [measured(0, Contender.POMONA, 1.0), measured(1, Contender.MLX_LM, 1.0)]
    comparison = conclude(ENVIRONMENT, PLAN, loads, interrupted=True)
    assert comparison.throughput[0].ratio is None
    assert comparison.interrupted


def test_failed_requests_are_counted_over_all_loads() -> None:
    loads = [measured(0, Contender.POMONA, 1.0, failures=2), measured(0, Contender.MLX_LM, 1.0, failures=1)]
    assert conclude(ENVIRONMENT, PLAN, loads, interrupted=False).errors == 3


def test_the_json_reads_back_as_the_same_value() -> None:
    loads = [measured(0, Contender.POMONA, 1.0), measured(0, Contender.MLX_LM, 2.0)]
    comparison = conclude(ENVIRONMENT, PLAN, loads, interrupted=False)
    assert msgspec.json.decode(as_json(comparison), type=Comparison) == comparison

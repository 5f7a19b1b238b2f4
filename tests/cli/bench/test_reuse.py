from pomona.cli.bench.answer import Answer
from pomona.cli.bench.comparison import Environment
from pomona.cli.bench.reuse import CachePlan, Reuse, Source, chat_turn, conclude, reused

HERE = Environment(
    pomona="1",
    mlx_lm="2",
    mlx="3",
    python="3.11",
    platform="any",
    cpus=2,
    device="cpu",
    blas=None,
    model="m",
    weights="f",
)
PLAN = CachePlan(rounds=2, system_words=10, question_words=4, turns=3, max_tokens=4, seed="0")


def answer(prompt: int, cached: int = 0, ttft: float = 1.0, completion: int = 4) -> Answer:
    return Answer(
        started=10.0,
        deltas=(10.0 + ttft,),
        finished=20.0,
        prompt_tokens=prompt,
        completion_tokens=completion,
        finish="length",
        cached_tokens=cached,
    )


def result(*requests: tuple[int, Source, float], turns: tuple[Answer, ...] = ()) -> Reuse:
    before: Answer | None = None
    told = []
    for number, one in enumerate(turns):
        told.append(chat_turn(number, one, before))
        before = one
    return conclude(
        HERE,
        PLAN,
        [reused(turn, source, answer(100, 90, ttft)) for turn, source, ttft in requests],
        told,
        interrupted=False,
    )


def test_ratios_are_against_the_cold_request_of_the_same_round() -> None:
    cold, memory, disk = Source.COLD, Source.MEMORY, Source.DISK
    reuse = result((0, cold, 10.0), (0, memory, 0.5), (0, disk, 1.0), (1, cold, 20.0), (1, memory, 2.0), (1, disk, 8.0))
    assert reuse.memory is not None
    assert reuse.disk is not None
    assert (reuse.memory.rounds, reuse.disk.rounds) == ((0.05, 0.1), (0.1, 0.4))
    assert reuse.requests[0].ttft_ms == 10_000


def test_a_round_that_was_cut_off_gives_no_ratio() -> None:
    reuse = result((0, Source.COLD, 10.0), (0, Source.MEMORY, 1.0))
    assert reuse.memory is not None
    assert (reuse.disk, reuse.beyond_new) == (None, None)


def test_a_turn_is_measured_against_what_the_turn_before_held() -> None:
    reuse = result(turns=(answer(30), answer(50, cached=31), answer(70, cached=54)))
    assert [(turn.new_tokens, turn.computed_tokens) for turn in reuse.turns] == [(30, 30), (16, 19), (16, 16)]
    assert reuse.beyond_new == 3

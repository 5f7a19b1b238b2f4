"""A worker that shares its device: the turn it has, and a real process that is given turns by the test."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pomona.runtime.mailbox import now
from pomona.runtime.wire import Message
from pomona.workers.messages import (
    FREE_TURN,
    Assign,
    Cancel,
    Dropped,
    EndTurn,
    RequestId,
    Stepped,
    Turn,
    TurnEnded,
    WorkerToScheduler,
)
from pomona.workers.turn import OwnTurn
from tests.workers.engines import ask, make_engine, run, tiny, words
from tests.workers.test_actor import ME, Bench, endless, step_of

QUIET_MS = 300
"""How long the test listens for what must not come."""


def over(turn: OwnTurn, *, busy: bool = True) -> bool:
    return turn.is_over(busy=busy)


def test_a_free_turn_lasts_with_and_without_work_until_it_is_taken_back() -> None:
    turn = OwnTurn()
    turn.use(1e6)
    assert turn.may_step
    assert not over(turn)
    assert not over(turn, busy=False)
    turn.recall(EndTurn(FREE_TURN))
    assert not turn.may_step
    assert over(turn)
    assert over(turn, busy=False)


def test_a_turn_of_a_slice_is_over_once_it_is_used_up() -> None:
    turn = OwnTurn()
    turn.take(Turn(3, 1.0))
    turn.use(0.75)
    assert not over(turn)
    assert turn.may_step
    turn.use(0.25)
    assert over(turn)
    assert turn.end() == TurnEnded(3, 1.0)
    assert not turn.may_step
    assert not over(turn)


def test_a_turn_of_a_slice_is_over_where_there_is_no_work() -> None:
    turn = OwnTurn()
    turn.take(Turn(3, 1.0))
    assert not over(turn)
    assert over(turn, busy=False)


def test_another_turn_is_not_taken_back_by_an_order_that_comes_late() -> None:
    turn = OwnTurn()
    turn.take(Turn(3, None))
    turn.recall(EndTurn(2))
    assert turn.may_step
    turn.recall(EndTurn(3))
    turn.end()
    turn.recall(EndTurn(3))
    turn.take(Turn(4, None))
    assert turn.may_step


def test_each_turn_is_measured_by_itself_and_all_are_counted() -> None:
    turn = OwnTurn()
    turn.use(2.0)
    turn.recall(EndTurn(FREE_TURN))
    assert turn.end() == TurnEnded(FREE_TURN, 2.0)
    turn.take(Turn(1, 9.0))
    turn.use(0.5)
    assert turn.end() == TurnEnded(1, 0.5)
    assert (turn.ended, turn.seconds) == (2, 2.5)


def test_a_turn_cannot_be_given_back_twice() -> None:
    turn = OwnTurn()
    turn.end()
    with pytest.raises(RuntimeError, match="does not have"):
        turn.end()


def test_a_fresh_link_begins_with_a_free_turn_whatever_was() -> None:
    turn = OwnTurn()
    turn.end()
    turn.begin_anew()
    assert turn.may_step
    turn.take(Turn(5, 1.0))
    turn.recall(EndTurn(5))
    turn.begin_anew()
    assert turn.may_step
    turn.use(100.0)
    assert not over(turn)


@pytest.fixture(scope="module")
def serving(tiny_model: Path) -> Iterator[Bench]:
    bench = Bench(tiny_model, max_running=3, prefill_chunk=16)
    try:
        bench.greet()
        yield bench
    finally:
        bench.close()


@pytest.fixture
def bench(serving: Bench) -> Bench:
    """The worker has just met a new scheduler, so it has a free turn and no work."""
    serving.meet()
    return serving


def tell(bench: Bench, *messages: Message) -> None:
    for message in messages:
        assert bench.scheduler.send(ME, message)


def until_ended(bench: Bench, number: int) -> tuple[list[Stepped], TurnEnded]:
    """The steps of a turn, and its end."""
    steps: list[Stepped] = []
    while True:
        message: WorkerToScheduler = bench.listen()
        if isinstance(message, TurnEnded):
            assert message.number == number
            return steps, message
        assert isinstance(message, Stepped)
        steps.append(message)


def is_quiet(bench: Bench) -> bool:
    return not bench.scheduler.socket.poll(QUIET_MS)


def test_a_free_turn_is_given_back_behind_the_step_under_way_and_then_nothing_runs(bench: Bench) -> None:
    tell(bench, endless("r"))
    step_of(bench, "r")
    tell(bench, EndTurn(FREE_TURN))
    _, ended = until_ended(bench, FREE_TURN)
    assert ended.seconds > 0
    assert is_quiet(bench)
    tell(bench, Turn(1, None))
    step_of(bench, "r")


def test_without_work_a_free_turn_is_given_back_at_once_and_work_waits_for_the_next(bench: Bench) -> None:
    tell(bench, EndTurn(FREE_TURN), Assign(ask("r", words(1, 30), max_tokens=3, ignore_eos=True)))
    assert until_ended(bench, FREE_TURN)[0] == []
    assert is_quiet(bench)
    tell(bench, Turn(1, None))
    assert len(bench.collect("r")["r"].tokens) == 3


def test_who_waits_for_its_turn_rests(bench: Bench) -> None:
    tell(bench, EndTurn(FREE_TURN), endless("r"))
    until_ended(bench, FREE_TURN)
    worker = psutil.Process(bench.handle.pid)
    before = sum(worker.cpu_times()[:2])
    assert is_quiet(bench)
    assert sum(worker.cpu_times()[:2]) - before < QUIET_MS / 1000 / 4


def test_a_slice_is_used_up_in_whole_steps(bench: Bench) -> None:
    tell(bench, EndTurn(FREE_TURN), endless("r"))
    until_ended(bench, FREE_TURN)
    for number in range(1, 4):
        tell(bench, Turn(number, 0.02))
        steps, ended = until_ended(bench, number)
        assert steps
        assert ended.seconds >= 0.02
    assert is_quiet(bench)


def test_the_shortest_slice_is_one_step(bench: Bench) -> None:
    tell(bench, EndTurn(FREE_TURN), endless("r"))
    until_ended(bench, FREE_TURN)
    for number in range(1, 20):
        tell(bench, Turn(number, 0.0))
        steps, _ = until_ended(bench, number)
        assert len(steps) == 1


def test_a_slice_ends_early_once_there_is_no_work(bench: Bench) -> None:
    tell(bench, EndTurn(FREE_TURN), Assign(ask("r", words(1, 30), max_tokens=3, ignore_eos=True)))
    until_ended(bench, FREE_TURN)
    began = now()
    tell(bench, Turn(1, 1000.0))
    steps, ended = until_ended(bench, 1)
    assert any(event.finish for event in steps[-1].events)
    assert 0 < ended.seconds <= now() - began
    tell(bench, Turn(2, 1000.0))
    assert until_ended(bench, 2)[0] == []


def test_a_cancel_is_acknowledged_without_a_turn(bench: Bench) -> None:
    tell(bench, endless("r"), endless("s"))
    step_of(bench, "s")
    tell(bench, EndTurn(FREE_TURN))
    until_ended(bench, FREE_TURN)
    tell(bench, Cancel(RequestId("r")))
    dropped = bench.listen()
    assert isinstance(dropped, Dropped)
    assert dropped.id == "r"
    after = bench.listen()
    assert isinstance(after, Stepped)
    assert (after.events, after.stats.running) == ((), 1)
    assert is_quiet(bench)


def test_tokens_do_not_depend_on_where_turns_end(bench: Bench) -> None:
    requests = [
        ask(f"r{seed}", words(seed, 30 + seed), sampling={"seed": seed, "temperature": 1.0}) for seed in range(3)
    ]
    tell(bench, EndTurn(FREE_TURN), *(Assign(request) for request in requests))
    until_ended(bench, FREE_TURN)
    wanted = run(make_engine(tiny()), requests)
    heard: dict[str, list[int]] = {name: [] for name in wanted}
    for number in range(1, 10_000):
        tell(bench, Turn(number, 0.0))
        steps, _ = until_ended(bench, number)
        events = [event for step in steps for event in step.events]
        for event in events:
            heard[event.id] += event.tokens
        if not steps:
            break
    assert heard == {name: list(outcome.tokens) for name, outcome in wanted.items()}


def test_turns_are_counted_in_the_workers_state(bench: Bench) -> None:
    tell(bench, endless("r"))
    before = step_of(bench, "r").stats
    tell(bench, EndTurn(FREE_TURN))
    until_ended(bench, FREE_TURN)
    for number in (1, 2):
        tell(bench, Turn(number, 0.0))
        until_ended(bench, number)
    tell(bench, Turn(3, None))
    after = step_of(bench, "r").stats
    assert after.turns == before.turns + 3
    assert after.turn_seconds > before.turn_seconds > 0


def test_a_new_scheduler_gives_a_free_turn_without_a_word(bench: Bench) -> None:
    tell(bench, endless("old"), EndTurn(FREE_TURN))
    until_ended(bench, FREE_TURN)
    bench.meet()
    tell(bench, endless("new"))
    step_of(bench, "new")

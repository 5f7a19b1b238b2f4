"""Turns on one device, in simulated time, with workers that keep them as real ones do."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.runtime.mailbox import Peer
from pomona.scheduler.turns import PATIENCE_S, Turns
from pomona.workers.messages import EndTurn, Turn
from pomona.workers.turn import OwnTurn

A, B, C = Peer("worker:a", 0), Peer("worker:b", 0), Peer("worker:b:1", 0)
SLICE_S = 1.0


@dataclass
class Model:
    """A worker with this many steps to make, each of so many seconds."""

    step_s: float
    steps: float = 0
    turn: OwnTurn = field(default_factory=OwnTurn)
    heard: list[Turn | EndTurn] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    """When each of its steps began."""
    hung: bool = False

    @property
    def may_step(self) -> bool:
        return bool(self.steps) and self.turn.may_step


class Device:
    """The workers and the turns that they get; orders and answers arrive at once."""

    def __init__(self, *workers: Peer, step_s: float = 0.25, weights: tuple[float, ...] = ()) -> None:
        self.now = 100.0
        self.turns = Turns(SLICE_S)
        self.models: dict[Peer, Model] = {}
        for index, peer in enumerate(workers):
            self.join(peer, step_s, weights[index] if weights else 1.0)

    def join(self, peer: Peer, step_s: float = 0.25, weight: float = 1.0) -> None:
        self.models[peer] = Model(step_s)
        self.turns.add(peer, weight)

    def give(self, peer: Peer, steps: float = float("inf")) -> None:
        """Work for a worker."""
        self.turns.has_work(peer)
        self.obey()
        self.models[peer].steps += steps
        self.settle()

    def take(self, peer: Peer) -> None:
        """All its requests are cancelled."""
        self.models[peer].steps = 0
        self.turns.idle(peer)
        self.settle()

    def kill(self, peer: Peer) -> None:
        del self.models[peer]
        self.turns.gone(peer)
        self.settle()

    def obey(self) -> None:
        for peer, order in self.turns.decide(self.now):
            model = self.models[peer]
            model.heard.append(order)
            if isinstance(order, Turn):
                model.turn.take(order)
            else:
                model.turn.recall(order)

    def settle(self) -> None:
        """Until nobody has anything to say."""
        for _ in range(20):
            self.obey()
            over = [
                (peer, model)
                for peer, model in self.models.items()
                if not model.hung and model.turn.is_over(busy=bool(model.steps))
            ]
            for peer, model in over:
                ended = model.turn.end()
                self.turns.ended(peer, ended.number, ended.seconds, self.now)
            if not over:
                return
        raise AssertionError("the turns do not come to rest")

    def step(self) -> Peer | None:
        """Who has the turn makes a step; None if nobody has work."""
        able = [peer for peer, model in self.models.items() if model.may_step]
        assert len(able) == any(model.steps for model in self.models.values()), "one of those with work has the turn"
        if not able or self.models[able[0]].hung:
            return None
        model = self.models[able[0]]
        model.began.append(self.now)
        self.now += model.step_s
        model.steps -= 1
        model.turn.use(model.step_s)
        if not model.steps:
            self.turns.idle(able[0])
        self.settle()
        return able[0]

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and self.step() is not None:
            pass

    def used(self, peer: Peer) -> float:
        return self.models[peer].turn.seconds

    def heard(self) -> int:
        return sum(len(model.heard) for model in self.models.values())


def test_a_worker_alone_with_work_is_told_nothing() -> None:
    device = Device(A, B)
    device.give(A, 10)
    device.run(100)
    device.give(B, 10)
    device.run(100)
    device.give(A, 1)
    device.run(100)
    assert device.heard() == 0
    assert (device.used(A), device.used(B)) == (2.75, 2.5)


@pytest.mark.parametrize("steps", [(0.25, 0.25, 0.25), (0.05, 3.0, 0.25), (0.3, 0.7, 7.0)])
def test_all_with_work_get_the_same_time_but_for_one_overrun(steps: tuple[float, ...]) -> None:
    device = Device()
    for peer, step_s in zip((A, B, C), steps, strict=True):
        device.join(peer, step_s)
    for peer in (A, B, C):
        device.give(peer)
    for _ in range(20):
        device.run(10)
        times = [device.used(peer) for peer in (A, B, C)]
        assert max(times) - min(times) <= 2 * SLICE_S + max(steps)
    assert sum(times) == pytest.approx(device.now - 100.0)


def test_a_turn_ends_at_its_slice_and_a_step_that_began_is_finished() -> None:
    device = Device(A, B, step_s=0.7)
    device.give(A)
    device.give(B)
    assert [device.step() for _ in range(8)] == [B, B, A, A, B, B, A, A]


def test_time_goes_by_weight() -> None:
    device = Device(A, B, weights=(3.0, 1.0))
    device.give(A)
    device.give(B)
    device.run(200)
    assert device.used(A) == pytest.approx(150, abs=2 * SLICE_S)
    assert device.used(B) == pytest.approx(50, abs=2 * SLICE_S)


def test_a_newcomer_waits_for_one_running_slice_at_most() -> None:
    device = Device(A, B, C)
    device.give(A)
    device.give(B)
    for wait in range(1, 30):
        device.run(0.25 * wait)
        asked = device.now
        device.give(C, 1)
        begun = len(device.models[C].began)
        device.run(5)
        assert device.models[C].began[begun] - asked <= SLICE_S


def test_a_free_turn_is_taken_back_at_the_next_step() -> None:
    device = Device(A, B)
    device.give(A)
    device.run(50)
    device.give(B)
    assert device.models[A].heard == [EndTurn(0)]
    assert device.step() is B


def test_time_alone_on_the_device_is_not_held_against_a_worker() -> None:
    device = Device(A, B)
    device.give(A)
    device.run(50)
    device.give(B)
    device.run(20)
    assert device.used(B) == pytest.approx(10, abs=2 * SLICE_S)


def test_idleness_saves_nothing_up() -> None:
    device = Device(A, B, C)
    device.give(A)
    device.give(B)
    device.run(50)
    before = device.used(A)
    device.give(C)
    device.run(30)
    assert device.used(C) == pytest.approx(10, abs=2 * SLICE_S)
    assert device.used(A) - before == pytest.approx(10, abs=2 * SLICE_S)


def test_an_overrun_is_paid_back_even_after_a_pause() -> None:
    device = Device(A, C)
    device.join(B, step_s=6.0)
    device.give(A)
    device.give(C)
    device.give(B, 1)
    while not device.models[B].began:
        device.step()
    device.give(B, 1)
    later = device.now
    device.run(20)
    assert device.models[B].began[-1] - later >= 2 * (6.0 - 2 * SLICE_S)


def test_nobody_owes_anything_once_all_were_idle() -> None:
    device = Device(A)
    device.join(B, step_s=9.0)
    device.give(A)
    device.give(B, 1)
    assert device.step() is B
    device.take(A)
    device.give(A)
    device.give(B)
    device.run(0.5)
    assert len(device.models[B].began) == 2


def test_nobody_owes_anything_to_the_dead() -> None:
    device = Device(A, C)
    device.join(B, step_s=9.0)
    device.give(A)
    device.give(B, 1)
    assert device.step() is B
    device.kill(A)
    device.give(C)
    device.give(B)
    device.run(0.5)
    assert len(device.models[B].began) == 2


def test_who_goes_idle_passes_the_turn_on_at_once() -> None:
    device = Device(A, B)
    device.give(A)
    device.give(B, 2)
    assert [device.step() for _ in range(4)] == [B, B, A, A]
    device.give(B)
    while device.step() is A:
        pass
    device.take(B)
    assert device.step() is A


def test_the_last_one_with_work_has_a_free_turn_again() -> None:
    device = Device(A, B)
    device.give(A)
    device.give(B, 3)
    device.run(50)
    last = device.models[A].heard[-1]
    assert isinstance(last, Turn)
    assert last.seconds is None
    heard = device.heard()
    device.run(50)
    assert device.heard() == heard


def test_a_worker_that_was_idle_loses_its_free_turn_before_it_gets_work_beside_another() -> None:
    device = Device(A, B)
    device.give(A)
    device.models[A].hung = True
    device.give(B)
    assert device.models[B].heard == [EndTurn(0)]
    assert not device.models[B].may_step
    assert device.models[A].heard == [EndTurn(0)]


@pytest.mark.parametrize("when", [0.0, 0.25, 0.5, 5.0])
def test_who_dies_holding_the_turn_blocks_nobody(when: float) -> None:
    device = Device(A, B, C)
    for peer in (A, B, C):
        device.give(peer)
    device.run(when)
    (holder,) = [peer for peer, model in device.models.items() if model.may_step]
    device.kill(holder)
    before = device.now
    device.run(10)
    assert device.now - before >= 10


def test_who_dies_before_it_gave_its_free_turn_back_blocks_nobody() -> None:
    device = Device(A, B)
    device.give(A)
    device.models[A].hung = True
    device.give(B)
    assert device.models[B].heard == [EndTurn(0)]
    device.kill(A)
    assert device.step() is B


def test_the_end_of_a_turn_that_was_replaced_or_is_anothers_changes_nothing() -> None:
    device = Device(A, B)
    device.give(A)
    device.give(B)
    assert device.step() is B
    for peer, number in ((A, 0), (A, 1), (B, 0), (B, 7)):
        device.turns.ended(peer, number, 1.0, device.now)
        device.settle()
    assert [device.step() for _ in range(4)] == [B, B, B, A]


def test_a_new_scheduler_starts_clean_with_workers_that_have_free_turns() -> None:
    device = Device(A, B)
    device.give(A)
    device.give(B)
    device.run(10)
    device.turns = Turns(SLICE_S)
    for peer, model in device.models.items():
        device.turns.add(peer)
        model.turn.begin_anew()
        model.steps = 0
    device.give(B, 1)
    assert device.step() is B
    device.give(B)
    device.give(A)
    device.run(20)
    assert device.models[A].began[-1] > device.now - 3 * SLICE_S


def hang(device: Device, peer: Peer) -> None:
    """All have work, and this one hangs in its turn until the others go on."""
    for each in device.models:
        device.give(each)
    while not device.models[peer].may_step:
        device.step()
    device.models[peer].hung = True
    deadline = device.turns.deadline()
    assert deadline is not None
    device.now = deadline
    device.settle()


def test_who_keeps_its_turn_too_long_is_left_behind_and_the_others_go_on() -> None:
    device = Device(A, B, C)
    hang(device, B)
    steps = [device.models[peer] for peer in (A, C)]
    for _ in range(80):
        (able,) = [model for model in steps if model.may_step]
        device.now += able.step_s
        able.turn.use(able.step_s)
        device.settle()
    assert device.used(A) == pytest.approx(device.used(C), abs=2 * SLICE_S)
    assert not any(isinstance(order, EndTurn) for order in device.models[B].heard[1:])


def test_a_turn_is_waited_for_as_long_as_a_step_may_take() -> None:
    device = Device(A, B)
    assert device.turns.deadline() is None
    device.give(A)
    assert device.turns.deadline() is None
    device.models[A].hung = True
    device.give(B)
    assert device.turns.deadline() == device.now + PATIENCE_S
    device.now += PATIENCE_S - 0.01
    device.settle()
    assert not device.models[B].may_step
    device.now += 0.01
    device.settle()
    assert device.models[B].may_step
    assert device.turns.deadline() == device.now + SLICE_S + PATIENCE_S


def test_who_was_left_behind_pays_for_its_long_step_and_takes_part_again() -> None:
    device = Device(A, B)
    hang(device, B)
    late = device.models[B]
    late.turn.use(SLICE_S + PATIENCE_S)
    late.hung = False
    device.settle()
    assert [device.step() for _ in range(12)] == [A] * 12
    device.run(5)
    assert device.used(B) > SLICE_S + PATIENCE_S


def test_who_was_left_behind_is_awaited_all_the_same() -> None:
    device = Device(A, B)
    hang(device, B)
    due = device.now - PATIENCE_S
    assert silent(device, B, 7.0) == due - SLICE_S
    assert silent(device, B, device.now) == due
    device.turns.idle(B)
    assert silent(device, B, device.now) == due - SLICE_S


def silent(device: Device, peer: Peer, progressed: float) -> float | None:
    return device.turns.silent_since(peer, progressed)


def test_nothing_is_awaited_from_the_idle_and_from_those_that_wait_for_their_turn() -> None:
    device = Device(A, B)
    assert silent(device, A, 7.0) is None
    device.give(A)
    assert silent(device, A, 107.0) == 107.0
    device.give(B)
    assert silent(device, A, 107.0) is None
    device.take(B)
    device.take(A)
    assert silent(device, A, 107.0) is None


def test_silence_counts_from_the_start_of_a_turn_and_from_its_end_where_it_is_not_given_back() -> None:
    device = Device(A, B)
    device.give(A)
    device.now = 150.0
    device.give(B)
    assert silent(device, B, 101.0) == 150.0
    assert silent(device, B, 150.5) == 150.5
    assert silent(device, B, 160.0) == 150.0 + SLICE_S


def test_a_free_turn_that_is_not_given_back_counts_from_when_it_was_taken() -> None:
    device = Device(A, B)
    device.give(A)
    device.models[A].hung = True
    device.now = 150.0
    device.give(B)
    assert silent(device, A, 101.0) == 101.0
    assert silent(device, A, 160.0) == 150.0
    device.turns.idle(A)
    assert silent(device, A, 160.0) is not None  # the other still waits for it


@dataclass(frozen=True)
class Happening:
    act: Callable[[Device, Peer, int], None]
    peer: Peer
    number: int


def work(device: Device, peer: Peer, number: int) -> None:
    if peer in device.models:
        device.give(peer, number)


def cancel(device: Device, peer: Peer, number: int) -> None:
    if peer in device.models:
        device.take(peer)


def die(device: Device, peer: Peer, number: int) -> None:
    if peer in device.models:
        device.kill(peer)


def start(device: Device, peer: Peer, number: int) -> None:
    if peer not in device.models:
        device.join(peer, 0.1 * number)


def steps(device: Device, peer: Peer, number: int) -> None:
    for _ in range(number):
        device.step()


HAPPENINGS = st.builds(
    Happening,
    st.sampled_from([work, work, steps, steps, cancel, die, start]),
    st.sampled_from([A, B, C]),
    st.integers(1, 9),
)


@given(st.lists(HAPPENINGS, max_size=60))
def test_whatever_happens_one_has_the_turn_and_all_work_gets_done(happenings: list[Happening]) -> None:
    device = Device(A, B, C)
    for happening in happenings:
        happening.act(device, happening.peer, happening.number)
    while device.step() is not None:
        pass
    assert not any(model.steps for model in device.models.values())

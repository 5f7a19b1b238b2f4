"""The core among workers that share a device: what it says of turns, and whom it lets wait."""

from collections import Counter

from pomona.config import Config, ModelConfig
from pomona.runtime.mailbox import Peer
from pomona.runtime.wire import Message
from pomona.scheduler.core import Core
from pomona.scheduler.messages import CancelRequest, GatewayHello, Submit
from pomona.scheduler.plan import next_deadline
from pomona.scheduler.turns import PATIENCE_S
from pomona.workers.messages import Assign, Cancel, Dropped, EndTurn, Stepped, Turn, TurnEnded, WorkerReady, WorkerStats
from tests.scheduler.rows import event, request
from tests.scheduler.test_core import READY, A, B, Desk, G, W, X

SLICE_S = 0.1


def shared(desk: Desk) -> None:
    """Request `a` runs on W and `b` on X; W has been asked for its free turn."""
    desk.hear(G, GatewayHello())
    desk.hear(W, READY)
    desk.hear(X, READY)
    assert desk.hear(G, Submit(request("a"))) == [(W, Assign(request("a")))]
    assert desk.hear(G, Submit(request("b"))) == [(X, EndTurn(0)), (W, EndTurn(0)), (X, Assign(request("b")))]


def turn_of(said: list[tuple[Peer, Message]], peer: Peer) -> Turn:
    """The only thing that was said: it is this worker's turn."""
    ((whose, turn),) = said
    assert whose == peer
    assert isinstance(turn, Turn)
    return turn


def test_a_worker_gets_its_turn_when_the_other_gave_it_back() -> None:
    desk = Desk()
    shared(desk)
    assert turn_of(desk.hear(W, TurnEnded(0, 5.0)), X).seconds == SLICE_S


def test_the_one_left_with_work_gets_a_turn_without_end_and_keeps_it() -> None:
    desk = Desk()
    shared(desk)
    first = turn_of(desk.hear(W, TurnEnded(0, 0.0)), X)
    last = event(request("b"), 0, 8)
    assert last.finish is not None
    desk.hear(X, Stepped((last,), WorkerStats()))
    assert turn_of(desk.hear(X, TurnEnded(first.number, SLICE_S)), W).seconds is None
    desk.hear(W, Stepped((event(request("a"), 0, 8),), WorkerStats()))
    assert desk.said() == []
    assert desk.hear(G, Submit(request("c"))) == [(W, Assign(request("c")))]


def test_a_worker_whose_last_request_was_cancelled_has_no_work() -> None:
    desk = Desk()
    shared(desk)
    first = turn_of(desk.hear(W, TurnEnded(0, 0.0)), X)
    assert desk.hear(G, CancelRequest(A)) == [(W, Cancel(A))]
    desk.hear(W, Dropped(A))
    assert turn_of(desk.hear(X, TurnEnded(first.number, SLICE_S)), X).seconds is None


def test_the_turn_of_a_worker_that_dies_goes_to_the_other_at_once() -> None:
    desk = Desk()
    shared(desk)
    said = desk.roster((W, "dead"), (X, "ready"))
    assert {type(message) for peer, message in said if peer == X} == {Assign, Turn}
    assert desk.hear(W, TurnEnded(0, 0.0)) == []


def test_who_waits_for_its_turn_is_not_taken_for_stuck() -> None:
    desk = Desk(progress_timeout_s=10.0)
    shared(desk)
    late = turn_of(desk.hear(W, TurnEnded(0, 0.0)), X)
    desk.now = 9.0  # one step of X takes so long
    turn = turn_of(desk.said(), W)
    assert desk.hear(X, Stepped((event(request("b"), 0, 1),), WorkerStats()), TurnEnded(late.number, 9.0)) != []
    for position in range(7):
        desk.now += 2.0
        desk.hear(W, Stepped((event(request("a"), position, 1),), WorkerStats()))
        turn = turn_of(desk.hear(W, TurnEnded(turn.number, SLICE_S)), W)
    assert desk.now - 9.0 > 10.0
    assert desk.core.outbox.take_kills() == []
    assert desk.stats().workers[1].silent_s == 0.0


def test_who_does_not_end_its_turn_is_killed_however_busy_it_is() -> None:
    desk = Desk(progress_timeout_s=10.0)
    shared(desk)
    turn_of(desk.hear(W, TurnEnded(0, 0.0)), X)
    assert next_deadline(desk.core.state, 0.0) == SLICE_S + PATIENCE_S
    for position in range(7):
        desk.now += 1.5
        for peer, id in ((W, "a"), (X, "b")):
            desk.hear(peer, Stepped((event(request(id), position, 1),), WorkerStats()))
    (kill,) = desk.core.outbox.take_kills()
    assert kill.name == X.name
    assert "did not end its turn" in kill.reason


def test_a_cancel_that_is_not_heeded_is_no_matter_of_turns() -> None:
    desk = Desk(progress_timeout_s=10.0)
    shared(desk)
    desk.hear(W, TurnEnded(0, 0.0))
    assert desk.hear(G, CancelRequest(A)) == [(W, Cancel(A))]
    assert B in desk.core.state.jobs
    desk.now = 10.0
    desk.said()
    assert W.name in {kill.name for kill in desk.core.outbox.take_kills()}


def test_the_end_of_a_turn_of_a_stranger_changes_nothing() -> None:
    assert Desk().hear(W, TurnEnded(0, 0.0)) == []


def test_a_models_weight_is_its_share_of_the_time() -> None:
    core = Core(Config(models=(ModelConfig(id="m", path="-", weight=4.0), ModelConfig(id="n", path="-"))))
    n = Peer("worker:n", 0)
    core.receive(G, GatewayHello(), 0.0)
    for peer, model in ((W, "m"), (n, "n")):
        core.receive(peer, WorkerReady(model, 2, 100), 0.0)
        core.receive(G, Submit(request(model, model=model)), 0.0)
        core.decide(0.0)
    core.outbox.take_messages()
    core.receive(W, TurnEnded(0, 0.0), 0.0)
    got: Counter[str] = Counter()
    for index in range(50):
        core.decide(float(index))
        peer, turn = core.outbox.take_messages()[-1]
        assert isinstance(turn, Turn)
        got[peer.name] += 1
        core.receive(peer, TurnEnded(turn.number, 1.0), index + 1.0)
    assert got == {"worker:m": 40, "worker:n": 10}

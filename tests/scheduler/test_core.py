"""The core fed by hand: what befalls peers and requests, and what is said about it."""

from pomona.config import Config, ModelConfig, SchedulerConfig
from pomona.runtime.control import ActorName, ActorState, ActorStatus, Roster
from pomona.runtime.mailbox import Peer
from pomona.runtime.wire import Message, replace
from pomona.scheduler.core import Core, SchedulerInbound
from pomona.scheduler.messages import (
    AskStats,
    Cancelled,
    CancelRequest,
    Events,
    GatewayHello,
    Models,
    ModelState,
    Progressed,
    Refused,
    Stats,
    Submit,
)
from pomona.workers.messages import Assign, Cancel, Dropped, RequestId, Stepped, WorkerReady, WorkerStats
from tests.scheduler.rows import event, request
from tests.scheduler.simulator import check

G, H = Peer("gateway", 0), Peer("gateway:1", 0)
W, X = Peer("worker:m", 0), Peer("worker:m:1", 0)
A, B = RequestId("a"), RequestId("b")
READY = WorkerReady("m", 2, 100)


class Desk:
    """A core with a clock that stands, and what it said since the last look."""

    def __init__(self, **limits: float) -> None:
        scheduler = replace(SchedulerConfig(), **limits)
        self.core = Core(Config(models=(ModelConfig(id="m", path="-"),), scheduler=scheduler))
        self.now = 0.0

    def hear(self, peer: Peer, *messages: SchedulerInbound) -> list[tuple[Peer, Message]]:
        for message in messages:
            self.core.receive(peer, message, self.now)
        return self.said()

    def said(self) -> list[tuple[Peer, Message]]:
        self.core.decide(self.now)
        check(self.core.state)
        return self.core.outbox.take_messages()

    def roster(self, *actors: tuple[Peer, ActorState]) -> list[tuple[Peer, Message]]:
        statuses = (
            ActorStatus(
                ActorName(peer.name),
                "gateway" if peer.name.startswith("gateway") else "worker",
                peer.incarnation,
                state,
                model="m" if peer.name.startswith("worker") else None,
                detail="broken weights",
            )
            for peer, state in actors
        )
        self.core.roster_changed(Roster(tuple(statuses)), self.now)
        return self.said()

    def stats(self) -> Stats:
        (_, stats) = self.hear(G, AskStats(1))[-1]
        assert isinstance(stats, Stats)
        return stats


def running(desk: Desk) -> None:
    """Request `a` of gateway G runs on worker W."""
    desk.hear(G, GatewayHello())
    desk.hear(W, READY)
    assert desk.hear(G, Submit(request("a"))) == [(W, Assign(request("a")))]


def test_a_gateway_is_greeted_with_the_models() -> None:
    assert Desk().hear(G, GatewayHello()) == [(G, Models((ModelState(id="m", state="loading"),)))]


def test_who_did_not_introduce_itself_is_not_heard() -> None:
    desk = Desk()
    assert desk.hear(G, Submit(request("a")), CancelRequest(A), AskStats(1)) == []
    assert desk.hear(W, Stepped((event(request("a"), 0, 1),), WorkerStats()), Dropped(A)) == []
    assert not desk.core.state.jobs


def test_peers_that_the_supervisor_declared_dead_are_not_taken_in() -> None:
    desk = Desk()
    desk.roster((G, "dead"), (Peer("worker:m", 1), "starting"))
    assert desk.hear(G, GatewayHello()) == []
    assert desk.hear(W, READY) == []
    assert not desk.core.state.workers
    assert desk.hear(Peer("gateway", 1), GatewayHello())
    desk.hear(Peer("worker:m", 1), READY)
    assert list(desk.core.state.workers) == [Peer("worker:m", 1)]


def test_a_newer_incarnation_replaces_an_older_one_and_not_the_other_way_round() -> None:
    desk = Desk()
    running(desk)
    newer = Peer("worker:m", 1)
    said = desk.hear(newer, READY)
    assert (newer, Assign(request("a"))) in said
    assert desk.hear(W, READY) == []
    assert list(desk.core.state.workers) == [newer]
    desk.hear(Peer("gateway", 1), GatewayHello())
    assert desk.hear(G, GatewayHello()) == []


def test_events_go_to_their_gateways_in_order_one_message_each() -> None:
    desk = Desk()
    running(desk)
    desk.hear(H, GatewayHello())
    desk.hear(H, Submit(request("b")))
    a, b, a2 = event(request("a"), 0, 1), event(request("b"), 0, 1), event(request("a"), 1, 2)
    said = desk.hear(W, Stepped((a, b, a2), WorkerStats(running=2), {A: 3, B: 2}))
    assert said == [
        (G, Events((a, a2))),
        (H, Events((b,))),
        (G, Progressed({A: 3})),
        (H, Progressed({B: 2})),
    ]


def test_a_cancel_is_acknowledged_once_the_worker_dropped_it() -> None:
    desk = Desk()
    running(desk)
    assert desk.hear(G, CancelRequest(A), CancelRequest(A)) == [(W, Cancel(A))]
    assert desk.hear(W, Stepped((event(request("a"), 0, 1),), WorkerStats(), {A: 1})) == []
    assert desk.stats().running == 1  # its worker has yet to answer
    assert desk.hear(W, Dropped(A)) == [(G, Cancelled(A))]
    assert desk.hear(G, CancelRequest(A)) == [(G, Cancelled(A))]
    assert (desk.stats().running, desk.stats().cancelled) == (0, 1)


def test_a_cancel_is_acknowledged_when_its_worker_dies_instead() -> None:
    desk = Desk()
    running(desk)
    desk.hear(G, CancelRequest(A))
    assert (G, Cancelled(A)) in desk.roster((W, "dead"))
    assert desk.core.idle


def test_a_gateway_cannot_cancel_what_is_not_its_own() -> None:
    desk = Desk()
    running(desk)
    desk.hear(H, GatewayHello())
    assert desk.hear(H, CancelRequest(A)) == [(H, Cancelled(A))]
    assert desk.stats().running == 1


def test_a_fresh_hello_ends_what_the_former_link_submitted() -> None:
    desk = Desk()
    running(desk)
    said = desk.hear(G, GatewayHello())
    assert said[0] == (W, Cancel(A))
    assert desk.hear(W, Dropped(A)) == []
    assert desk.core.idle


def test_a_new_submission_of_a_held_request_waits_for_the_drop_and_then_runs() -> None:
    desk = Desk()
    running(desk)
    desk.hear(G, GatewayHello())
    again = request("a", committed=(5,))
    assert desk.hear(G, Submit(again, resumed=True)) == []
    assert desk.hear(W, Stepped((event(request("a"), 0, 1),), WorkerStats())) == []
    assert desk.hear(W, Dropped(A)) == [(W, Assign(again))]
    stats = desk.stats()
    assert (stats.submitted, stats.cancelled, stats.running) == (2, 1, 1)


def test_a_new_submission_of_a_waiting_request_replaces_it() -> None:
    desk = Desk()
    desk.hear(G, GatewayHello())
    desk.hear(G, Submit(request("a")), Submit(request("a", seed=5)))
    assert desk.hear(W, READY)[-1] == (W, Assign(request("a", seed=5)))


def test_a_withdrawn_request_that_is_refused_anew_ends_with_the_drop() -> None:
    desk = Desk()
    running(desk)
    (cancel, (_, refused)) = desk.hear(G, Submit(request("a", model="x")))
    assert cancel == (W, Cancel(A))
    assert isinstance(refused, Refused)
    assert desk.hear(W, Dropped(A)) == []
    assert desk.core.idle


def test_a_request_is_resumed_with_its_tokens_on_another_replica() -> None:
    desk = Desk()
    running(desk)
    first = event(request("a"), 0, 3)
    desk.hear(W, Stepped((first,), WorkerStats()))
    desk.hear(X, READY)
    said = desk.roster((W, "dead"), (X, "ready"))
    assert (X, Assign(request("a", committed=first.tokens))) in said


def test_a_worker_that_dropped_a_request_unasked_gets_it_again() -> None:
    desk = Desk()
    running(desk)
    assert desk.hear(W, Dropped(A)) == [(W, Assign(request("a")))]
    assert desk.stats().resumed == 1


def test_a_request_whose_workers_die_too_often_is_poison() -> None:
    desk = Desk(max_resumes=2)
    running(desk)
    for incarnation in (1, 2):
        assert (Peer("worker:m", incarnation), Assign(request("a"))) in desk.hear(Peer("worker:m", incarnation), READY)
    (said, *_) = desk.roster((Peer("worker:m", 2), "dead"))
    assert isinstance(said[1], Refused)
    assert (said[1].id, said[1].kind) == (A, "poison")
    assert "lost 3 times" in said[1].message
    assert desk.core.idle
    assert desk.stats().refused == {"poison": 1}


def test_a_worker_that_sends_the_same_progress_again_makes_none() -> None:
    desk = Desk(progress_timeout_s=10)
    running(desk)
    for now in range(1, 12):
        desk.now = float(now)
        desk.hear(W, Stepped((), WorkerStats(), {A: 1}))
    assert [kill.name for kill in desk.core.outbox.take_kills()] == ["worker:m"]
    assert desk.hear(W, READY) == []
    assert not desk.core.state.workers


def test_what_a_silent_worker_held_goes_to_a_free_replica_at_once() -> None:
    desk = Desk(progress_timeout_s=10)
    running(desk)
    desk.hear(X, READY)
    desk.now = 10.0
    assert (X, Assign(request("a"))) in desk.said()


def test_a_request_that_ran_for_long_waits_as_patiently_as_a_new_one() -> None:
    desk = Desk(max_waiting_s=10, progress_timeout_s=1000)
    running(desk)
    desk.now = 100.0
    desk.roster((W, "dead"))
    desk.now = 109.0
    assert desk.said() == []
    desk.now = 110.0
    assert [type(message) for _, message in desk.said()] == [Refused]


def test_a_worker_that_prefills_on_is_left_alone() -> None:
    desk = Desk(progress_timeout_s=10)
    running(desk)
    for now in range(1, 100):
        desk.now = float(now)
        desk.hear(W, Stepped((), WorkerStats(), {A: now}))
    assert desk.core.outbox.take_kills() == []
    assert desk.stats().workers[0].silent_s == 0


def test_every_event_and_every_drop_is_progress() -> None:
    desk = Desk(progress_timeout_s=10)
    running(desk)
    desk.hear(G, Submit(request("b")))
    desk.now = 8.0
    desk.hear(W, Stepped((event(request("a"), 0, 1),), WorkerStats(running=2)))
    assert desk.stats().workers[0].silent_s == 0
    desk.now = 17.0
    assert desk.stats().workers[0].silent_s == 9
    desk.hear(G, CancelRequest(B))
    desk.hear(W, Dropped(B))
    assert desk.stats().workers[0].silent_s == 0
    desk.now = 26.0
    desk.said()
    assert desk.core.outbox.take_kills() == []
    assert desk.stats().workers[0].stats.running == 2


def test_a_request_whose_sequence_breaks_too_often_is_poison() -> None:
    desk = Desk(max_resumes=1)
    running(desk)
    gap = Stepped((event(request("a"), 3, 1),), WorkerStats())
    assert desk.hear(W, gap) == [(W, Cancel(A))]
    assert desk.hear(W, Dropped(A)) == [(W, Assign(request("a")))]
    assert desk.hear(W, gap, gap) == [(W, Cancel(A))]
    ((_, refused),) = desk.hear(W, Dropped(A))
    assert isinstance(refused, Refused)
    assert refused.kind == "poison"


def test_a_worker_that_takes_no_messages_is_gone_until_it_is_ready_again() -> None:
    desk = Desk()
    running(desk)
    desk.core.unreachable(W, 0.0)
    assert [kill.name for kill in desk.core.outbox.take_kills()] == ["worker:m"]
    desk.said()
    assert (desk.stats().running, desk.stats().waiting) == (0, 1)
    desk.core.unreachable(W, 0.0)
    assert desk.core.outbox.take_kills() == []
    assert (W, Assign(request("a"))) in desk.hear(W, READY)


def test_a_gateway_that_takes_no_messages_loses_its_requests() -> None:
    desk = Desk()
    running(desk)
    desk.core.unreachable(G, 0.0)
    assert [kill.name for kill in desk.core.outbox.take_kills()] == ["gateway"]
    assert desk.said() == [(W, Cancel(A))]
    assert desk.hear(G, Submit(request("b"))) == []


def test_a_stopping_worker_keeps_its_rows_and_gets_no_more() -> None:
    desk = Desk()
    running(desk)
    desk.roster((W, "stopping"))
    assert desk.hear(G, Submit(request("b"))) == []
    assert desk.stats().running == 1
    assert desk.roster((W, "ready")) == [(W, Assign(request("b")))]


def test_a_model_fails_only_if_all_its_workers_did() -> None:
    desk = Desk()
    desk.hear(G, GatewayHello())
    assert desk.roster((W, "failed"), (X, "starting")) == []
    failed = ModelState(id="m", state="failed", detail="broken weights")
    assert desk.roster((W, "failed"), (X, "failed")) == [(G, Models((failed,)))]
    assert desk.roster((W, "failed"), (X, "failed")) == []
    ready = ModelState(id="m", state="ready", context=100, workers=1, methods=("ngram",))
    assert desk.hear(Peer("worker:m", 1), READY) == [(G, Models((ready,)))]


def test_gateways_learn_which_methods_of_speculation_a_model_has() -> None:
    desk = Desk()
    assert desk.hear(G, GatewayHello()) == [(G, Models((ModelState(id="m", state="loading"),)))]
    said = desk.hear(W, WorkerReady("m", 2, 100, methods=("ngram", "mtp")))
    assert said == [(G, Models((ModelState(id="m", state="ready", context=100, workers=1, methods=("ngram", "mtp")),)))]
    (back,) = [message for _, message in desk.hear(W, WorkerReady("m", 2, 100, methods=()))]
    assert isinstance(back, Models)
    assert back.models[0].methods == ()


def test_a_full_queue_counts_only_those_for_whom_no_row_is_free() -> None:
    desk = Desk(max_waiting=1)
    desk.hear(G, GatewayHello())
    desk.hear(W, READY)
    said = desk.hear(G, *(Submit(request(id)) for id in "abcd"))
    assert [message.request.id for _, message in said if isinstance(message, Assign)] == ["a", "b"]
    assert [message.id for _, message in said if isinstance(message, Refused)] == ["d"]


def test_the_time_to_come_back_follows_the_requests_that_workers_ended() -> None:
    desk = Desk(max_waiting=3)
    desk.hear(G, GatewayHello())
    desk.hear(W, READY)
    for number in range(5):
        desk.now = 10.0 * number
        one = request(f"done{number}", max_tokens=1)
        desk.hear(G, Submit(one))
        desk.hear(W, Stepped((event(one, 0, 1),), WorkerStats()))
    said = desk.hear(G, *(Submit(request(id)) for id in "abcdef"))
    ((_, refused),) = [(peer, message) for peer, message in said if isinstance(message, Refused)]
    assert isinstance(refused, Refused)
    assert refused.retry_after_s == 24  # three wait, and one ended every eight seconds


def test_where_nothing_may_wait_the_free_rows_are_used_all_the_same() -> None:
    desk = Desk(max_waiting=0)
    desk.hear(G, GatewayHello())
    desk.hear(W, READY)
    said = desk.hear(G, *(Submit(request(id)) for id in "abc"))
    assert [message.request.id for _, message in said if isinstance(message, Assign)] == ["a", "b"]
    assert [message.id for _, message in said if isinstance(message, Refused)] == ["c"]


def test_a_stop_refuses_what_never_ran_and_keeps_what_did() -> None:
    desk = Desk()
    running(desk)
    desk.hear(G, Submit(request("b")), Submit(request("c")))
    desk.core.stop(0.0)
    assert [message.id for _, message in desk.said() if isinstance(message, Refused)] == ["c"]
    assert (Peer("worker:m", 1), Assign(request("a"))) in desk.hear(Peer("worker:m", 1), READY)
    desk.hear(G, CancelRequest(B))
    desk.core.abandon(0.0)
    said = desk.said()
    assert (G, Cancelled(B)) in said
    assert [message.id for _, message in said if isinstance(message, Refused)] == ["a"]
    assert desk.core.idle

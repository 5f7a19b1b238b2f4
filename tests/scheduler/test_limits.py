"""Bounds on clients, prompts and time, and the preemption of what runs, through the core."""

import pytest

from pomona.runtime.mailbox import Peer
from pomona.runtime.wire import replace
from pomona.scheduler.messages import Cancelled, CancelRequest, Events, GatewayHello, Refused, Submit
from pomona.workers.kv_cost import KVCost
from pomona.workers.messages import Assign, Cancel, Dropped, Stepped, WorkerReady, WorkerStats
from tests.scheduler.rows import event, request
from tests.scheduler.test_core import READY, A, B, Desk, G, W, X, running

pytestmark = pytest.mark.timeout(20)
"""A plan that never has said all would keep the core going without end."""


def refused(said: list[tuple[Peer, object]]) -> Refused:
    """The only thing said is a refusal."""
    ((to, message),) = said
    assert to == G
    assert isinstance(message, Refused)
    return message


def balanced(desk: Desk) -> bool:
    stats = desk.stats()
    ended = stats.finished + stats.cancelled + sum(stats.refused.values())
    return stats.submitted == ended + stats.waiting + stats.running


# clients


def test_a_client_has_so_many_requests_running_and_waiting_and_no_more() -> None:
    desk = Desk(max_per_client=2)
    desk.hear(G, GatewayHello())
    desk.hear(W, replace(READY, max_running=1))
    for id in "ab":
        desk.hear(G, Submit(request(id, client="one")))
    why = refused(desk.hear(G, Submit(request("c", client="one"))))
    assert (why.kind, why.retry_after_s) == ("client_limit", 120)
    assert "2 requests running or waiting" in why.message
    assert "is 2 (scheduler.max_per_client)" in why.message
    assert desk.hear(G, Submit(request("d", client="two"))) == []
    desk.hear(G, CancelRequest(B))
    assert desk.hear(G, Submit(request("e", client="one"))) == []
    assert balanced(desk)


def test_the_bound_of_a_client_does_not_apply_to_what_was_admitted_before() -> None:
    desk = Desk(max_per_client=1)
    desk.hear(G, GatewayHello())
    for id in "ab":
        assert desk.hear(G, Submit(request(id, client="one"), resumed=True)) == []


def test_a_refused_client_is_told_when_one_of_its_own_will_have_ended() -> None:
    desk = Desk(max_per_client=1)
    desk.hear(G, GatewayHello())
    desk.hear(W, replace(READY, max_running=8))
    for number in range(4):
        desk.hear(G, Submit(request(f"done{number}", client="c", max_tokens=1)))
        desk.now += 2.0
        desk.hear(W, Stepped((event(request(f"done{number}", max_tokens=1), 0, 1),), WorkerStats()))
    for number in range(3):
        desk.hear(G, Submit(request(f"other{number}", client=f"other{number}")))
    desk.hear(G, Submit(request("mine", client="c")))
    # Four ended within the six seconds since the first of them; of the four that run, any may be the client's.
    assert refused(desk.hear(G, Submit(request("more", client="c")))).retry_after_s == 6


# prompts


def test_a_prompt_beyond_the_limit_is_refused_with_the_numbers() -> None:
    desk = Desk(max_prompt_tokens=3)
    desk.hear(G, GatewayHello())
    why = refused(desk.hear(G, Submit(request("a", prompt=(1, 2, 3, 4)))))
    assert why.kind == "prompt_length"
    assert "holds 4 tokens" in why.message
    assert "is 3 (scheduler.max_prompt_tokens)" in why.message
    assert desk.hear(G, Submit(request("b", prompt=(1, 2, 3)))) == []


def test_a_request_beyond_the_memory_of_a_worker_is_refused_at_once() -> None:
    desk = Desk()
    desk.hear(G, GatewayHello())
    desk.hear(W, WorkerReady("m", 2, 100, KVCost(per_token=10), 2000))
    why = refused(desk.hear(G, Submit(request("a"))))
    assert why.kind == "kv_memory"
    assert "take 2560 bytes" in why.message


# time


def test_a_running_request_beyond_its_time_ends_once_the_worker_has_dropped_it() -> None:
    desk = Desk(max_total_s=10)
    running(desk)
    first = event(request("a"), 0, 2)
    assert desk.hear(W, Stepped((first,), WorkerStats())) == [(G, Events((first,)))]
    desk.now = 9.9
    assert desk.said() == []
    desk.now = 10.0
    assert desk.said() == [(W, Cancel(A))]
    assert desk.hear(W, Stepped((event(request("a"), 2, 1),), WorkerStats())) == []
    why = refused(desk.hear(W, Dropped(A)))
    assert why.kind == "timed_out"
    assert "longer than 10 s (scheduler.max_total_s)" in why.message
    assert "2 of at most 8 output tokens" in why.message
    assert desk.core.idle
    stats = desk.stats()
    assert (stats.refused, stats.cancelled, stats.finished) == ({"timed_out": 1}, 0, 0)
    assert balanced(desk)


def test_a_waiting_request_beyond_its_time_ends_at_once() -> None:
    desk = Desk(max_total_s=10)
    desk.hear(G, GatewayHello())
    desk.hear(G, Submit(request("a")))
    desk.now = 10.0
    assert refused(desk.said()).kind == "timed_out"


def test_the_time_goes_on_through_a_lost_worker() -> None:
    desk = Desk(max_total_s=10)
    running(desk)
    desk.now = 6.0
    desk.roster((W, "dead"))
    desk.hear(X, READY)
    desk.now = 10.0
    assert desk.said() == [(X, Cancel(A))]


def test_a_client_that_cancels_what_is_timing_out_hears_of_its_cancel() -> None:
    desk = Desk(max_total_s=10)
    running(desk)
    desk.now = 10.0
    desk.said()
    desk.hear(G, CancelRequest(A))
    assert desk.hear(W, Dropped(A)) == [(G, Cancelled(A))]
    assert balanced(desk)


def test_a_worker_that_dies_while_a_request_times_out_ends_it_all_the_same() -> None:
    desk = Desk(max_total_s=10)
    running(desk)
    desk.now = 10.0
    desk.said()
    said = desk.roster((W, "dead"))
    assert [message.kind for _, message in said if isinstance(message, Refused)] == ["timed_out"]
    assert desk.core.idle


# preemption


def test_a_preempted_request_goes_on_where_it_was_and_no_loss_is_counted() -> None:
    desk = Desk(max_resumes=0)
    desk.hear(G, GatewayHello())
    desk.hear(W, replace(READY, max_running=1))
    low, high = request("a", priority=5), request("b", priority=0)
    desk.hear(G, Submit(low))
    first = event(low, 0, 3)
    desk.hear(W, Stepped((first,), WorkerStats()))
    assert desk.hear(G, Submit(high)) == [(W, Cancel(A))]
    assert desk.hear(W, Stepped((event(low, 3, 1),), WorkerStats())) == [], "what is not delivered is computed again"
    assert desk.hear(W, Dropped(A)) == [(W, Assign(high))]
    desk.hear(W, Stepped((event(high, 0, 8),), WorkerStats()))
    assert desk.core.state.running == 1
    (job,) = desk.core.state.jobs.values()
    assert (job.committed, job.resumes) == (list(first.tokens), 0)
    last = event(low, 3, 5)
    assert desk.hear(W, Stepped((last,), WorkerStats())) == [(G, Events((last,)))]
    stats = desk.stats()
    assert (stats.preempted, stats.resumed, stats.finished) == (1, 0, 2)
    assert balanced(desk)


def test_a_preempted_request_whose_worker_dies_first_is_not_blamed_for_it() -> None:
    desk = Desk(max_resumes=0)
    desk.hear(G, GatewayHello())
    desk.hear(W, replace(READY, max_running=1))
    desk.hear(G, Submit(request("a", priority=5)))
    desk.hear(G, Submit(request("b", priority=0)))
    assert desk.roster((W, "dead")) != []
    assert [str(id) for id in desk.core.state.jobs] == ["a", "b"]
    said = desk.hear(X, replace(READY, max_running=1))
    assert [message.request.id for _, message in said if isinstance(message, Assign)] == ["b"]


def test_a_request_that_is_submitted_anew_while_it_is_preempted_runs_as_submitted() -> None:
    desk = Desk()
    desk.hear(G, GatewayHello())
    desk.hear(W, replace(READY, max_running=1))
    desk.hear(G, Submit(request("a", priority=5)))
    desk.hear(G, Submit(request("b", priority=0)))
    desk.hear(G, Submit(request("a", priority=-1), resumed=True))
    assert [type(message) for _, message in desk.hear(W, Dropped(A))] == [Assign]
    assert balanced(desk)


def test_a_preempted_request_that_then_waits_too_long_keeps_what_it_got_and_is_told_so() -> None:
    desk = Desk(max_waiting_s=10, progress_timeout_s=1000)
    desk.hear(G, GatewayHello())
    desk.hear(W, replace(READY, max_running=1))
    low = request("a", priority=5)
    desk.hear(G, Submit(low))
    first = event(low, 0, 3)
    assert desk.hear(W, Stepped((first,), WorkerStats())) == [(G, Events((first,)))]
    desk.now = 50.0
    desk.hear(G, Submit(request("b", priority=0)))
    desk.now = 55.0
    assert desk.hear(W, Dropped(A)) == [(W, Assign(request("b", priority=0)))]
    desk.now = 64.9
    assert desk.said() == [], "its wait begins when its row is taken from it"
    desk.now = 65.0
    why = refused(desk.said())
    assert (why.id, why.kind) == (A, "waited_too_long")
    assert "waited 10 s" in why.message
    assert "10 s (scheduler.max_waiting_s)" in why.message
    assert 1 <= (why.retry_after_s or 0) <= 120
    assert list(desk.core.state.jobs) == [B]
    assert desk.hear(W, Stepped((event(request("b"), 0, 8),), WorkerStats())) != []
    assert desk.core.idle
    stats = desk.stats()
    assert (stats.preempted, stats.finished, stats.refused) == (1, 1, {"waited_too_long": 1})
    assert balanced(desk)


# what is counted


def test_each_wait_for_a_place_is_counted_by_its_length() -> None:
    desk = Desk()
    desk.hear(G, GatewayHello())
    desk.hear(G, Submit(request("a")))
    desk.now = 0.5
    desk.hear(G, Submit(request("b")))
    desk.hear(W, READY)
    waits = desk.stats().waits
    assert sum(waits.counts) == 2
    assert (waits.counts[0], waits.counts[3]) == (1, 1)
    assert waits.total == 0.5


def test_the_memory_of_each_worker_is_told() -> None:
    desk = Desk()
    running(desk)
    desk.hear(X, WorkerReady("m", 1, 100, KVCost(per_token=10), 5120))
    desk.hear(G, Submit(request("b")))
    told = {worker.name: (worker.kv_reserved, worker.kv_capacity) for worker in desk.stats().workers}
    assert told == {"worker:m": (0, 0), "worker:m:1": (2560, 5120)}

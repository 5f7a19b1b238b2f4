"""Memory and urgency: what goes where, what waits for room, what is overtaken, and what has to make room."""

import pytest

from pomona.scheduler.admission import refusal
from pomona.scheduler.plan import Dispatch, Preempt, Refuse, plan
from pomona.scheduler.ranking import MAX_OVERTAKEN
from pomona.scheduler.state import AHEAD, State
from pomona.workers.kv_cost import STEP
from tests.scheduler.rows import request
from tests.scheduler.simulator import check
from tests.scheduler.states import (
    acknowledge,
    carry_out,
    dispatched,
    drop,
    preempted,
    ready,
    state_of,
    wait,
    wait_big,
)

LONG = 10_000
"""Tokens of context, more than any test asks for."""


def run(state: State, now: float = 0.0) -> list[str]:
    """Plan and carry out until nothing follows; the dispatched in order."""
    placed: list[str] = []
    while commands := plan(state, now):
        placed += dispatched(commands)
        carry_out(state, commands, now)
        check(state)
    return placed


def finish(state: State, id: str, now: float = 0.0) -> None:
    state.end(next(job for job in state.jobs.values() if job.id == id), now)


# memory


def test_requests_run_beside_each_other_only_as_far_as_their_kv_fits_at_full_length() -> None:
    state = state_of()
    worker = ready(state, rows=8, context=LONG, steps=5)
    for id in "abc":
        wait_big(state, id, 2)
    assert run(state) == ["a", "b"]
    assert (worker.kv_reserved, worker.kv_free) == (4 * STEP, STEP)
    finish(state, "a")
    assert run(state) == ["c"]


def test_the_reservation_is_for_prompt_and_answer_together() -> None:
    state = state_of()
    worker = ready(state, rows=2, context=LONG, steps=3)
    wait(state, "a", prompt=(0,) * STEP, max_tokens=STEP + 1)
    run(state)
    assert worker.kv_reserved == 3 * STEP


def test_a_full_replica_is_passed_by_for_one_with_room() -> None:
    state = state_of()
    ready(state, "worker:m:0", rows=9, context=LONG, steps=3)
    ready(state, "worker:m:1", rows=1, context=LONG, steps=3)
    wait_big(state, "a", 3)
    wait_big(state, "b", 3)
    placed = [(c.id, c.worker.name) for c in plan(state, 0.0) if isinstance(c, Dispatch)]
    assert placed == [("a", "worker:m:0"), ("b", "worker:m:1")]


def test_a_request_beyond_an_empty_workers_memory_is_refused_with_the_numbers() -> None:
    state = state_of()
    big = request("a", prompt=(0,) * 10, max_tokens=3 * STEP)
    assert refusal(state, big, 0.0, resumed=False) is None, "nothing is known yet"
    ready(state, "worker:m:0", context=LONG, steps=3)
    why = refusal(state, big, 0.0, resumed=False)
    assert why
    assert why.kind == "kv_memory"
    for part in ("10 prompt", "768 output", "1024 bytes", "768 for all", "worker.kv_bytes", "lower max_tokens"):
        assert part in why.message
    ready(state, "worker:m:1", context=LONG, steps=4)
    assert refusal(state, big, 0.0, resumed=False) is None, "one replica is large enough"


def test_memory_learned_late_refuses_what_waits_and_serves_what_is_behind() -> None:
    state = state_of()
    wait_big(state, "a", 4)
    wait_big(state, "b", 1)
    ready(state, context=LONG, steps=3)
    refused, placed = plan(state, 0.0)
    assert isinstance(refused, Refuse)
    assert (refused.id, refused.refusal.kind) == ("a", "kv_memory")
    assert dispatched((placed,)) == ["b"]


def test_without_a_budget_only_rows_count() -> None:
    state = state_of()
    ready(state, rows=3, context=10**9)
    for id in "abcd":
        wait(state, id, max_tokens=10**8)
    assert run(state) == ["a", "b", "c"]


# growth


def grow(state: State, id: str, tokens: int) -> None:
    """The running request has so many output tokens more."""
    state.commit(next(job for job in state.jobs.values() if job.id == id), (7,) * tokens)


def test_a_long_answer_reserves_ahead_of_itself_and_not_for_all_that_it_may_become() -> None:
    state = state_of()
    worker = ready(state, rows=2, context=LONG, steps=20)
    wait(state, "a", prompt=(0,) * STEP, max_tokens=19 * STEP)
    wait(state, "b", prompt=(0,) * STEP, max_tokens=19 * STEP)
    assert run(state) == ["a", "b"]
    ahead = 2 * AHEAD
    assert worker.kv_reserved == 2 * (STEP + ahead)
    grow(state, "a", AHEAD - 1)
    assert worker.kv_reserved == 2 * (STEP + ahead)
    grow(state, "a", 1)
    assert worker.kv_reserved == 2 * (STEP + ahead) + AHEAD
    grow(state, "a", 10 * AHEAD)
    assert state.jobs[next(iter(state.jobs))].kv_bytes == 20 * STEP, "never more than it may become"


def test_a_request_goes_only_where_it_fits_at_full_length_though_it_reserves_less() -> None:
    state = state_of()
    ready(state, "worker:m:0", rows=2, context=LONG, steps=6)
    large = ready(state, "worker:m:1", rows=2, context=LONG, steps=12)
    wait(state, "long", prompt=(0,), max_tokens=12 * STEP - 1)
    (command,) = plan(state, 0.0)
    assert isinstance(command, Dispatch)
    assert command.worker == large.peer


def test_nothing_is_preempted_where_the_urgent_one_could_never_become_as_long_as_it_may() -> None:
    state = state_of()
    small = ready(state, "worker:m:0", rows=1, context=LONG, steps=6)
    large = ready(state, "worker:m:1", rows=1, context=LONG, steps=12)
    state.assign(wait(state, "least", priority=9), small, 0.0)
    state.assign(wait(state, "less", priority=5), large, 0.0)
    wait(state, "long", prompt=(0,), max_tokens=12 * STEP - 1, priority=0)
    assert preempted(plan(state, 0.0)) == ["less"]


def test_answers_that_outgrow_the_memory_together_go_on_one_after_the_other() -> None:
    state = state_of(max_waiting_s=1e6)
    ready(state, rows=3, context=LONG, steps=12)
    for id in "abc":
        wait(state, id, prompt=(0,), max_tokens=12 * STEP - 1)
    assert run(state) == ["a", "b"], "five steps each"
    grow(state, "a", AHEAD)
    assert plan(state, 0.0) == ()
    grow(state, "b", AHEAD)
    commands = plan(state, 0.0)
    assert preempted(commands) == ["b"], "the youngest"
    carry_out(state, commands, 0.0)
    assert plan(state, 0.0) == (), "and nothing takes its place"
    acknowledge(state, 0.0)
    assert run(state) == ["c"], "which needs less by now, and is not shed"
    grow(state, "a", 12 * STEP - 2 * AHEAD - 1)
    assert preempted(plan(state, 0.0)) == ["c"]
    carry_out(state, plan(state, 0.0), 0.0)
    acknowledge(state, 0.0)
    assert run(state) == []
    finish(state, "a")
    assert run(state) == ["b", "c"], "both fit again"


def test_the_most_urgent_of_those_that_outgrow_the_memory_stays() -> None:
    state = state_of(max_waiting_s=1e6)
    ready(state, rows=2, context=LONG, steps=12)
    wait(state, "old", prompt=(0,), max_tokens=12 * STEP - 1, priority=1)
    wait(state, "urgent", prompt=(0,), max_tokens=12 * STEP - 1, priority=0)
    run(state)
    for id in ("old", "urgent"):
        grow(state, id, AHEAD)
    assert preempted(plan(state, 0.0)) == ["old"]


# overtaking


def test_a_small_request_overtakes_a_large_one_that_finds_no_room() -> None:
    state = state_of()
    ready(state, rows=8, context=LONG, steps=4)
    wait_big(state, "running", 2)
    run(state)
    large = wait_big(state, "large", 3)
    wait_big(state, "small", 1)
    (command,) = plan(state, 0.0)
    assert isinstance(command, Dispatch)
    assert (command.id, command.passed) == ("small", ("large",))
    run(state)
    assert large.overtaken == 1


def test_a_large_request_is_overtaken_a_bounded_number_of_times_and_then_awaited() -> None:
    state = state_of(max_waiting_s=1e6)
    ready(state, rows=8, context=LONG, steps=4)
    wait_big(state, "first", 2)
    run(state)
    large = wait_big(state, "large", 3)
    for number in range(MAX_OVERTAKEN):
        wait_big(state, f"s{number}", 1)
        assert run(state) == [f"s{number}"]
        finish(state, f"s{number}")
    assert large.overtaken == MAX_OVERTAKEN
    wait_big(state, "late", 1)
    assert run(state) == []
    finish(state, "first")
    assert run(state) == ["large", "late"]
    assert large.overtaken == 0


def test_what_was_overtaken_too_often_goes_ahead_of_less_served_clients_but_not_of_the_urgent() -> None:
    state = state_of()
    ready(state, rows=1, context=LONG, steps=4)
    wait_big(state, "large", 3, client="a").overtaken = MAX_OVERTAKEN
    wait_big(state, "fair", 1, client="b")
    wait_big(state, "urgent", 1, client="b", priority=-1)
    state.shares.charge("a", output=1000)
    assert dispatched(plan(state, 0.0)) == ["urgent"]
    finish(state, "urgent")
    assert dispatched(plan(state, 0.0)) == ["large"]


def test_one_replica_is_kept_for_a_large_request_while_the_others_go_on() -> None:
    state = state_of()
    near = ready(state, "worker:m:0", rows=8, context=LONG, steps=4)
    far = ready(state, "worker:m:1", rows=8, context=LONG, steps=4)
    small = ready(state, "worker:m:2", rows=8, context=LONG, steps=2)
    for worker, id, steps in ((near, "n", 2), (far, "f", 3), (small, "t", 1)):
        state.assign(wait_big(state, id, steps), worker, 0.0)
    wait_big(state, "large", 4).overtaken = MAX_OVERTAKEN
    for id in "abc":
        wait_big(state, id, 1)
    placed = {c.id: c.worker for c in plan(state, 0.0) if isinstance(c, Dispatch)}
    assert set(placed) == {"a", "b"}
    assert set(placed.values()) == {far.peer, small.peer}


def test_what_is_about_to_be_dropped_belongs_to_the_first_that_needs_it() -> None:
    state = state_of()
    ready(state, rows=8, context=LONG, steps=4)
    wait_big(state, "running", 3)
    run(state)
    drop(state, "running", 0.0)
    wait_big(state, "large", 4)
    wait_big(state, "small", 1)
    assert plan(state, 0.0) == ()
    acknowledge(state, 0.0)
    assert run(state) == ["large"]


# preemption


def full(state: State, *priorities: int) -> None:
    """All rows are taken, by requests r0, r1, … of these priorities."""
    ready(state, rows=len(priorities))
    for number, priority in enumerate(priorities):
        wait(state, f"r{number}", priority=priority)
    assert len(run(state)) == len(priorities)


def test_an_urgent_request_takes_the_place_of_the_least_urgent_youngest_one() -> None:
    state = state_of()
    full(state, 1, 2, 2, 0)
    wait(state, "u", priority=0)
    commands = plan(state, 1.0)
    assert commands == (Preempt(state.jobs[next(id for id in state.jobs if id == "r2")].id),)
    carry_out(state, commands, 1.0)
    assert plan(state, 1.0) == (), "one place is enough, and it is on its way"
    acknowledge(state, 2.0)
    assert run(state, 2.0) == ["u"]


@pytest.mark.parametrize("priority", [1, 2])
def test_equal_and_lesser_urgency_preempts_nothing(priority: int) -> None:
    state = state_of()
    full(state, 1, 1)
    wait(state, "u", priority=priority)
    assert plan(state, 0.0) == ()


def test_a_free_row_is_taken_before_anything_is_preempted() -> None:
    state = state_of()
    full(state, 5)
    ready(state, "worker:m:1", rows=1)
    wait(state, "u", priority=0)
    (command,) = plan(state, 0.0)
    assert isinstance(command, Dispatch)
    assert command.worker.name == "worker:m:1"


def test_each_urgent_request_takes_one_place() -> None:
    state = state_of()
    full(state, 5, 5, 5)
    wait(state, "u1", priority=0)
    wait(state, "u2", priority=1)
    commands = plan(state, 0.0)
    assert preempted(commands) == ["r2", "r1"]
    carry_out(state, commands, 0.0)
    acknowledge(state, 0.0)
    assert run(state) == ["u1", "u2"]


def test_a_row_that_comes_free_anyway_is_awaited() -> None:
    state = state_of()
    full(state, 5, 5)
    drop(state, "r0", 0.0)
    wait(state, "u", priority=0)
    assert plan(state, 0.0) == ()


def test_what_was_preempted_waits_with_its_own_priority_and_age_and_pushes_nobody_out() -> None:
    state = state_of()
    full(state, 3)
    wait(state, "younger", priority=3)
    wait(state, "u", priority=0)
    carry_out(state, plan(state, 1.0), 1.0)
    acknowledge(state, 1.0)
    assert run(state, 1.0) == ["u"]
    finish(state, "u")
    wait(state, "before", 1.0, priority=2)
    assert run(state, 1.0) == ["before"]
    finish(state, "before")
    assert run(state, 1.0) == ["r0"]


def test_a_preempted_request_pays_for_its_prompt_once() -> None:
    state = state_of()
    full(state, 3)
    state.jobs[next(iter(state.jobs))].committed.append(7)
    served = state.shares.used("")
    wait(state, "u", priority=0)
    carry_out(state, plan(state, 0.0), 0.0)
    acknowledge(state, 0.0)
    run(state)
    finish(state, "u")
    paid_for_u = 3
    assert run(state) == ["r0"]
    assert state.shares.used("") == served + paid_for_u


def test_what_lost_its_worker_and_runs_again_may_be_preempted_without_end() -> None:
    state = state_of()
    full(state, 9)
    (job,) = state.jobs.values()
    state.requeue(job, 0.0)
    wait(state, "u", priority=0)
    commands = plan(state, 0.0)
    assert dispatched(commands) == ["r0"]
    carry_out(state, commands, 0.0)
    carry_out(state, plan(state, 0.0), 0.0)
    acknowledge(state, 0.0)
    assert run(state) == ["u"]


def test_as_many_are_preempted_as_the_memory_of_the_urgent_one_takes_and_no_more() -> None:
    state = state_of()
    ready(state, rows=8, context=LONG, steps=6)
    for id in ("r0", "r1", "r2"):
        wait_big(state, id, 2, priority=5)
    run(state)
    wait_big(state, "u", 3, priority=0)
    commands = plan(state, 0.0)
    assert preempted(commands) == ["r2", "r1"]
    carry_out(state, commands, 0.0)
    # The first drop makes room for the one that was dropped, but that room is taken.
    first = next(job for job in state.jobs.values() if job.id == "r2")
    state.requeue(first, 1.0)
    assert plan(state, 1.0) == ()
    acknowledge(state, 1.0)
    assert run(state, 1.0) == ["u"]


def test_nothing_is_preempted_for_a_request_that_would_not_fit_even_then() -> None:
    state = state_of()
    ready(state, rows=8, context=LONG, steps=6)
    wait_big(state, "urgent", 2, priority=0)
    wait_big(state, "r", 4, priority=5)
    run(state)
    wait_big(state, "u", 5, priority=1)
    assert plan(state, 0.0) == ()


def test_the_place_is_made_where_the_least_urgent_runs() -> None:
    state = state_of()
    one, other = ready(state, "worker:m:0", rows=1), ready(state, "worker:m:1", rows=1)
    state.assign(wait(state, "r0", priority=4), one, 0.0)
    state.assign(wait(state, "r1", priority=6), other, 0.0)
    wait(state, "u", priority=0)
    assert preempted(plan(state, 0.0)) == ["r1"]


def test_a_worker_that_leaves_is_neither_filled_nor_emptied() -> None:
    state = state_of()
    full(state, 5)
    next(state.workers_of("m")).leaving = True
    wait(state, "u", priority=0)
    assert plan(state, 0.0) == ()

"""The plan as a pure function: states in, commands out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.scheduler.admission import refusal
from pomona.scheduler.plan import Condemn, Dispatch, Expire, Refuse, next_deadline, plan
from tests.scheduler.rows import request
from tests.scheduler.simulator import check
from tests.scheduler.states import GATEWAY, LIMITS, carry_out, dispatched, drop, ready, state_of, wait


def test_the_oldest_goes_first_and_only_as_many_as_there_are_rows() -> None:
    state = state_of()
    ready(state, rows=2)
    for id in "abc":
        wait(state, id)
    assert dispatched(plan(state, 0.0)) == ["a", "b"]


def test_nothing_is_dispatched_to_a_worker_of_another_model_or_one_that_leaves() -> None:
    state = state_of("m", "n")
    ready(state, "worker:n", model="n")
    ready(state, "worker:m").leaving = True
    wait(state, "a")
    assert plan(state, 0.0) == ()


def test_a_lower_priority_number_goes_first() -> None:
    state = state_of()
    ready(state, rows=1)
    wait(state, "a", priority=1)
    wait(state, "b", priority=0)
    assert dispatched(plan(state, 0.0)) == ["b"]


def test_what_ran_before_goes_ahead_of_every_priority() -> None:
    state = state_of()
    worker = ready(state, rows=1)
    ran = wait(state, "a", priority=9)
    state.assign(ran, worker, 0.0)
    wait(state, "b", priority=0)
    state.requeue(ran, 1.0)
    assert dispatched(plan(state, 1.0)) == ["a"]


def test_what_comes_back_with_tokens_after_a_scheduler_died_goes_ahead_too() -> None:
    state = state_of()
    ready(state, rows=1)
    wait(state, "a")
    state.admit(request("b", committed=(1,)), GATEWAY, 0.0, resumed=True)
    assert dispatched(plan(state, 0.0)) == ["b"]


def test_clients_take_turns_by_the_tokens_they_got() -> None:
    state = state_of()
    ready(state, rows=4)
    for id in ("a1", "a2", "a3"):
        wait(state, id, client="a", prompt=(0,) * 10)
    for id in ("b1", "b2"):
        wait(state, id, client="b", prompt=(0,) * 4)
    assert dispatched(plan(state, 0.0)) == ["a1", "b1", "b2", "a2"]


def test_tokens_that_were_served_count_against_their_client() -> None:
    state = state_of()
    worker = ready(state, rows=2)
    running = wait(state, "a1", client="a")
    wait(state, "a2", client="a")
    wait(state, "b1", client="b")
    state.assign(running, worker, 0.0)
    assert state.shares.used("a") == 3
    state.commit(running, (7, 8))
    assert state.shares.used("a") == 7
    assert dispatched(plan(state, 0.0)) == ["b1"]


def test_a_resume_costs_its_client_nothing() -> None:
    state = state_of()
    worker = ready(state)
    job = wait(state, "a", client="a")
    state.assign(job, worker, 0.0)
    state.requeue(job, 0.0)
    state.assign(job, worker, 0.0)
    assert state.shares.used("a") == 3


def test_replicas_are_filled_evenly_by_their_share_of_rows() -> None:
    state = state_of()
    ready(state, "worker:m:0", rows=4)
    ready(state, "worker:m:1", rows=2)
    for id in "abcdef":
        wait(state, id)
    placed = [command.worker.name for command in plan(state, 0.0) if isinstance(command, Dispatch)]
    assert placed == [f"worker:m:{n}" for n in (0, 1, 0, 0, 1, 0)]


def test_a_request_too_long_for_a_context_learned_late_is_refused_and_takes_no_row() -> None:
    state = state_of()
    wait(state, "a", prompt=(0,) * 5, max_tokens=6)
    wait(state, "b", prompt=(0,) * 5, max_tokens=5)
    ready(state, rows=1, context=10)
    refused, placed = plan(state, 0.0)
    assert isinstance(refused, Refuse)
    assert (refused.id, refused.refusal.kind) == ("a", "context_length")
    assert dispatched((placed,)) == ["b"]


def test_a_failed_model_empties_its_queue_with_the_reason() -> None:
    state = state_of()
    wait(state, "a")
    state.models["m"].failure = "weights are corrupt"
    (command,) = plan(state, 0.0)
    assert isinstance(command, Refuse)
    assert command.refusal.kind == "unavailable"
    assert "weights are corrupt" in command.refusal.message


def test_the_wait_is_bounded_and_a_free_row_is_better_than_a_refusal() -> None:
    state = state_of()
    wait(state, "a")
    wait(state, "b", 1.0)
    assert next_deadline(state, 40.0) == 60.0
    assert plan(state, 99.9) == ()
    (command,) = plan(state, 100.0)
    assert isinstance(command, Refuse)
    assert (command.id, command.refusal.kind) == ("a", "waited_too_long")
    assert "waited 100 s" in command.refusal.message
    ready(state, rows=1)
    late = plan(state, 101.0)
    assert dispatched(late) == ["a"]
    assert [command.id for command in late if isinstance(command, Refuse)] == ["b"]


def test_a_silent_worker_with_work_is_condemned_and_gets_nothing() -> None:
    state = state_of()
    worker = ready(state, rows=2)
    state.assign(wait(state, "a"), worker, 10.0)
    wait(state, "b", 20.0)
    assert next_deadline(state, 20.0) == 40.0
    assert dispatched(plan(state, 59.9)) == ["b"]
    (command,) = plan(state, 60.0)
    assert isinstance(command, Condemn)
    assert command.worker == worker.peer
    assert "1 requests" in command.reason


@pytest.mark.parametrize("afterwards", ["acknowledge", "silence", "refuse"])
def test_a_request_that_is_ending_is_not_ended_again_when_its_time_is_over(afterwards: str) -> None:
    state = state_of(max_total_s=10)
    worker = ready(state)
    state.assign(wait(state, "a"), worker, 0.0)
    drop(state, "a", 9.0, afterwards)
    assert plan(state, 9.0) == plan(state, 11.0) == ()
    assert next_deadline(state, 11.0) == 39.0, "only its worker is awaited"


def test_a_request_that_is_to_run_again_ends_when_its_time_is_over() -> None:
    state = state_of(max_total_s=10)
    worker = ready(state)
    state.assign(wait(state, "a"), worker, 0.0)
    drop(state, "a", 9.0, "again")
    (command,) = plan(state, 10.0)
    assert isinstance(command, Expire)
    carry_out(state, (command,), 10.0)
    assert plan(state, 10.0) == ()


def test_an_idle_worker_may_be_silent_for_ever() -> None:
    state = state_of()
    ready(state)
    assert next_deadline(state, 1e9) is None
    assert plan(state, 1e9) == ()


def test_a_worker_that_does_not_heed_a_cancel_is_condemned_though_it_goes_on() -> None:
    state = state_of()
    worker = ready(state)
    job = wait(state, "a")
    state.assign(job, worker, 0.0)
    state.withdraw(job, "acknowledge", 30.0)
    worker.progressed = 79.0
    assert plan(state, 79.0) == ()
    assert next_deadline(state, 79.0) == 1.0
    (command,) = plan(state, 80.0)
    assert isinstance(command, Condemn)


def test_admission_names_what_is_wrong() -> None:
    state = state_of("m", "n", max_context=10)
    said = {
        "x": refusal(state, request("a", model="x"), 0.0, resumed=False),
        "empty": refusal(state, request("a", prompt=()), 0.0, resumed=False),
        "long": refusal(state, request("a", prompt=(0,) * 4, max_tokens=7), 0.0, resumed=False),
    }
    assert {name: why.kind for name, why in said.items() if why} == {
        "x": "unknown_model",
        "empty": "context_length",
        "long": "context_length",
    }
    assert said["x"]
    assert said["x"].message == "model 'x' is not served here; served: m, n"
    assert said["long"]
    for number in ("4 prompt", "7 output", "11,", "holds 10"):
        assert number in said["long"].message
    assert refusal(state, request("a", prompt=(0,) * 3, max_tokens=7), 0.0, resumed=False) is None


def test_the_queue_is_bounded_for_new_requests_only() -> None:
    state = state_of()
    for number in range(LIMITS.max_waiting):
        assert refusal(state, request("a"), 0.0, resumed=False) is None
        wait(state, str(number))
    full = refusal(state, request("a"), 0.0, resumed=False)
    assert full
    assert full.kind == "queue_full"
    assert full.retry_after_s
    assert refusal(state, request("a"), 0.0, resumed=True) is None
    ready(state, rows=1)
    assert refusal(state, request("a"), 0.0, resumed=False) is None
    state.stopping = True
    stopping = refusal(state, request("a"), 0.0, resumed=True)
    assert stopping
    assert stopping.kind == "unavailable"


@pytest.mark.parametrize("resumed", [False, True])
def test_an_unknown_context_refuses_nothing(resumed: bool) -> None:
    assert refusal(state_of(), request("a", prompt=(0,) * 10**6), 0.0, resumed=resumed) is None


asks = st.lists(
    st.tuples(
        st.sampled_from("mn"),
        st.integers(1, 9),
        st.integers(0, 3),
        st.integers(0, 2),
        st.sampled_from("abc"),
        st.floats(0, 90),
    ),
    max_size=25,
)


@given(
    asks, st.lists(st.tuples(st.sampled_from("mn"), st.integers(1, 4), st.booleans()), max_size=4), st.floats(0, 200)
)
def test_any_plan_is_legal_complete_and_without_side_effects(
    wanted: list[tuple[str, int, int, int, str, float]], rows: list[tuple[str, int, bool]], now: float
) -> None:
    state = state_of("m", "n")
    for number, (model, count, leaving) in enumerate(rows):
        ready(state, f"worker:{model}:{number}", count, model=model, context=10).leaving = leaving
    for number, (model, prompt, answer, priority, client, since) in enumerate(sorted(wanted, key=lambda ask: ask[-1])):
        wait(
            state,
            f"r{number}",
            since,
            model=model,
            prompt=(0,) * prompt,
            max_tokens=answer,
            priority=priority,
            client=client,
        )
    commands = plan(state, now)
    assert plan(state, now) == commands
    check(state)
    ids = [command.id for command in commands if not isinstance(command, Condemn)]
    assert len(ids) == len(set(ids))
    chosen = {
        model: [state.jobs[command.id] for command in commands if isinstance(command, Dispatch)] for model in "mn"
    }
    for command in commands:
        if isinstance(command, Dispatch):
            assert state.workers[command.worker].model == state.jobs[command.id].request.model
    most = {
        model: max((job.request.priority for job in jobs if job.request.model == model), default=0)
        for model, jobs in chosen.items()
    }
    carry_out(state, commands, now)
    check(state)
    for model, queue in state.queues.items():
        assert not any(worker.free > 0 for worker in state.workers_of(model)), "a row stays free while requests wait"
        assert all(job.request.priority >= most[model] for job in queue.values())
        assert all(now < job.waiting_since + LIMITS.max_waiting_s for job in queue.values())
    assert plan(state, now) == ()

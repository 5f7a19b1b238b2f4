"""Laws of every plan, whatever the state: its commands are legal, it is a function, and it comes to rest."""

from hypothesis import given
from hypothesis import strategies as st

from pomona.scheduler.job import Phase
from pomona.scheduler.plan import Command, Condemn, Dispatch, Expire, Preempt, Refuse, next_deadline, plan
from pomona.scheduler.state import AHEAD, State
from tests.scheduler.simulator import check
from tests.scheduler.states import acknowledge, carry_out, drop, ready, state_of, wait_big

CONTEXT = 10_000
MAX_ROUNDS = 20
"""Plans in a row after which one that still has something to say goes in circles."""

workers = st.lists(st.tuples(st.sampled_from("mn"), st.integers(1, 4), st.integers(0, 14)), max_size=4)
requests = st.tuples(st.sampled_from("mn"), st.integers(1, 12), st.integers(-1, 2), st.sampled_from("abc"))
events = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), requests),
        st.tuples(st.sampled_from(["finish", "grow", "grow", "cancel", "lose"]), st.integers(0, 30)),
        st.tuples(st.just("drop"), st.none()),
        st.tuples(st.just("pass"), st.floats(0, 30)),
    ),
    max_size=40,
)


def legal(state: State, commands: tuple[Command, ...]) -> None:
    """Each names a request once, in the phase that it takes, and where there is room for it."""
    assert len({command.id for command in commands if not isinstance(command, Condemn)}) == sum(
        not isinstance(command, Condemn) for command in commands
    )
    rows = {worker.peer: worker.free for worker in state.workers.values()}
    room = {worker.peer: worker.kv_free for worker in state.workers.values()}
    for command in commands:
        match command:
            case Dispatch(id, peer, passed):
                job, worker = state.jobs[id], state.workers[peer]
                rows[peer] -= 1
                room[peer] -= worker.kv_need(job)
                assert job.phase is Phase.WAITING
                assert worker.model == job.request.model
                assert rows[peer] >= 0
                assert room[peer] >= 0
                assert all(state.jobs[other].phase is Phase.WAITING for other in passed)
            case Refuse(id):
                assert state.jobs[id].phase is Phase.WAITING
            case Preempt(id):
                job = state.jobs[id]
                assert job.phase is Phase.RUNNING
                assert job.worker is not None
                waiting = state.queues.get(job.request.model, {}).values()
                urgent = any(other.request.priority < job.request.priority for other in waiting)
                assert urgent or state.workers[job.worker].kv_free < 0
            case Expire(id):
                assert state.jobs[id].phase in (Phase.RUNNING, Phase.CANCELLING)
                assert not state.jobs[id].ending
            case Condemn(peer):
                assert peer in state.workers


def settle(state: State, now: float) -> None:
    """What `Core.decide` does, with every law checked."""
    for _ in range(MAX_ROUNDS):
        commands = plan(state, now)
        assert plan(state, now) == commands, "the plan changes the state"
        if not commands:
            check(state)
            deadline = next_deadline(state, now)
            assert deadline is None or deadline > 0, "the deadline is over and nothing follows"
            return
        legal(state, commands)
        carry_out(state, commands, now)
        check(state)
    raise AssertionError("the plan goes in circles")


@given(workers, events, st.sampled_from([0.0, 60.0]))
def test_any_life_keeps_to_the_laws(
    there: list[tuple[str, int, int]], life: list[tuple[str, object]], max_total_s: float
) -> None:
    state, now = state_of("m", "n", max_total_s=max_total_s), 0.0
    for number, (model, rows, steps) in enumerate(there):
        ready(state, f"worker:{model}:{number}", rows, model=model, context=CONTEXT, steps=steps)
    for number, (what, value) in enumerate(life):
        held = [job for worker in state.workers.values() for job in worker.held.values()]
        match what, value:
            case "ask", (str(model), int(steps), int(priority), str(client)):
                wait_big(state, f"r{number}", steps, now, model=model, priority=priority, client=client)
            case "pass", float(seconds):
                now += seconds
            case "drop", _:
                acknowledge(state, now)
            case "finish", int(index) if held:
                state.end(held[index % len(held)], now)
            case "grow", int(index) if held:
                job = held[index % len(held)]
                left = job.request.limits.max_tokens - len(job.committed)
                if job.phase is Phase.RUNNING:
                    state.commit(job, (7,) * min(left, AHEAD))
            case "cancel", int(index) if held:
                drop(state, held[index % len(held)].id, now)
            case "lose", int(index) if held:
                job = held[index % len(held)]
                if job.phase is Phase.RUNNING:
                    state.requeue(job, now)
        for worker in state.workers.values():
            worker.progressed = now
            for job in worker.held.values():
                job.cancelled_at = now
        settle(state, now)
    for _ in range(len(life) + 1):  # everything that can run ends in time
        acknowledge(state, now)
        settle(state, now)
        for worker in state.workers.values():
            for job in tuple(worker.held.values()):
                state.end(job, now)
        settle(state, now)
    assert not [model for model in state.queues if any(state.workers_of(model))], "a request starves"

import pytest

from pomona.config import Config
from pomona.runtime.actor import ActorSpec
from pomona.runtime.control import ActorName
from pomona.runtime.supervised import FAREWELL_S, IllegalMove, Supervised


@pytest.fixture
def actor() -> Supervised:
    spec = ActorSpec(
        name=ActorName("worker:a"),
        kind="worker",
        target="nowhere:Nobody",
        control="inproc://control",
        config=Config(),
        title="pomona: worker a",
        model="a",
    )
    return Supervised(spec, ready_timeout_s=100.0)


def test_the_ready_deadline_runs_from_the_start_is_moved_by_progress_and_ends_with_ready(actor: Supervised) -> None:
    actor.start(now=10.0)
    assert actor.deadline == 110.0
    actor.progress("loading", now=50.0)
    assert (actor.deadline, actor.detail) == (150.0, "loading")
    actor.ready("up", now=60.0)
    assert (actor.deadline, actor.detail, actor.state) == (None, "up", "ready")
    actor.progress("late words", now=70.0)
    assert (actor.deadline, actor.detail) == (None, "up")


def test_a_restart_is_planned_with_the_back_off_and_takes_the_next_incarnation(actor: Supervised) -> None:
    actor.start(now=0.0)
    actor.ended("signal 9 (SIGKILL)", now=5.0)
    assert (actor.state, actor.detail, actor.restart_at) == ("dead", "signal 9 (SIGKILL)", pytest.approx(5.1))
    assert actor.start(now=5.1).incarnation == 1
    assert (actor.state, actor.restart_at) == ("starting", None)
    actor.ended("exit status 1", now=6.0)
    assert actor.restart_at == pytest.approx(6.2)


def test_an_actor_that_was_ready_for_long_starts_again_at_once(actor: Supervised) -> None:
    for death in (1.0, 2.0, 3.0):
        actor.start(now=death)
        actor.ended("exit status 1", now=death)
    actor.start(now=4.0)
    actor.ready("", now=4.0)
    actor.ended("exit status 1", now=64.0)
    assert actor.restart_at == pytest.approx(64.1)


def test_what_it_reported_is_the_reason_and_a_final_failure_is_not_restarted(actor: Supervised) -> None:
    actor.start(now=0.0)
    actor.report("no tea; buy some", final=True, now=1.0)
    assert actor.deadline == 1.0 + FAREWELL_S
    actor.ended("exit status 70", now=2.0)
    assert (actor.state, actor.detail, actor.over) == ("failed", "no tea; buy some", True)
    assert actor.status().pid is None


def test_a_reported_failure_is_not_forgotten_when_it_has_to_be_killed_after_all(actor: Supervised) -> None:
    actor.start(now=0.0)
    actor.report("no tea; buy some", final=True, now=1.0)
    actor.kill(actor.overdue, now=7.0)
    actor.ended("signal 9 (SIGKILL)", now=7.1)
    assert (actor.state, actor.detail) == ("failed", "no tea; buy some")


def test_an_actor_that_is_being_killed_cannot_become_ready(actor: Supervised) -> None:
    actor.start(now=0.0)
    actor.kill("killed by the scheduler: silent", now=1.0)
    actor.ready("up", now=1.1)
    actor.progress("loading", now=1.1)
    assert (actor.state, actor.detail, actor.was_ready) == ("starting", "starting", False)
    actor.ended("signal 9 (SIGKILL)", now=1.2)
    assert (actor.state, actor.detail) == ("dead", "killed by the scheduler: silent")


def test_stopping_is_idempotent_and_its_end_is_not_a_death(actor: Supervised) -> None:
    actor.start(now=0.0)
    actor.ready("up", now=1.0)
    actor.stop(deadline=20.0)
    actor.stop(deadline=30.0)
    assert (actor.state, actor.deadline) == ("stopping", 20.0)
    assert not actor.over
    actor.ended("exit status 0", now=3.0)
    assert (actor.state, actor.restart_at, actor.over) == ("stopped", None, True)
    actor.stop(deadline=40.0)
    assert actor.state == "stopped"


def test_a_dead_actor_stops_without_further_ado(actor: Supervised) -> None:
    actor.start(now=0.0)
    actor.ended("exit status 1", now=1.0)
    actor.stop(deadline=20.0)
    assert (actor.state, actor.restart_at, actor.over) == ("stopped", None, True)


def test_what_survives_a_kill_is_given_up_with_its_process_number(actor: Supervised) -> None:
    actor.start(now=0.0)
    actor.hello(123)
    actor.ready("up", now=1.0)
    actor.stop(deadline=20.0)
    actor.kill(actor.overdue, now=20.0)
    assert actor.deadline == 20.0 + FAREWELL_S
    actor.abandon()
    assert (actor.state, actor.detail, actor.over) == ("failed", "process 123 survives a kill", True)


def test_illegal_moves_raise(actor: Supervised) -> None:
    actor.start(now=0.0)
    with pytest.raises(IllegalMove, match="worker:a: started twice"):
        actor.start(now=1.0)
    actor.stop(deadline=2.0)
    actor.ended("exit status 0", now=1.0)
    with pytest.raises(IllegalMove, match="worker:a: started while stopped"):
        actor.start(now=2.0)
    with pytest.raises(IllegalMove, match="worker:a: stopped -> dead"):
        actor.ended("exit status 0", now=3.0)

import os
import signal

import psutil
import pytest

from pomona.runtime.backoff import RestartPolicy
from pomona.runtime.control import ActorStatus, Kill, Roster
from pomona.runtime.mailbox import Mailbox, Peer, now
from pomona.runtime.wire import PROTOCOL
from tests.runtime.system import LIMIT_S, LateNews, System
from tests.support import actors

WHOLE = {
    "gateway": actors.Quiet,
    "worker:a": actors.Quiet,
    "scheduler": actors.Quiet,
    "cache": actors.Quiet,
}


def all_ready(roster: Roster) -> bool:
    return all(actor.state == "ready" for actor in roster.actors)


def test_it_starts_all_in_order_and_stops_them_in_order() -> None:
    with System(WHOLE) as system:
        roster = system.until(all_ready)
        assert [actor.name for actor in roster.actors] == ["cache", "scheduler", "worker:a", "gateway"]
        pids = [actor.pid for actor in roster.actors]
        assert all(pid is not None and psutil.pid_exists(pid) for pid in pids)
        system.stop()
        assert system.outcome() is None
        assert [actor.state for actor in system.history[-1].actors] == ["stopped"] * 4
        assert not any(pid is not None and psutil.pid_exists(pid) for pid in pids)
        stopped: list[str] = []
        for roster in system.history:
            stopped += [a.name for a in roster.actors if a.state == "stopped" and a.name not in stopped]
            following = [a for a in roster.actors if a.kind == "cache" and a.state == "stopping"]
            assert not following or {"gateway", "scheduler", "worker:a"} <= set(stopped)
        assert stopped == ["gateway", "scheduler", "worker:a", "cache"]
        assert system.states("gateway") == ["starting", "ready", "stopping", "stopped"]


def test_the_gateway_does_not_wait_for_workers() -> None:
    with System({"gateway": actors.Quiet, "worker:a": actors.NeverReady}) as system:
        system.until_state("gateway", "ready")
        assert system.states("worker:a") == ["starting"]


def test_a_killed_actor_comes_back_as_the_next_incarnation() -> None:
    with System(WHOLE) as system:
        before = system.until(all_ready).find("worker:a")
        assert before is not None
        assert before.pid is not None
        os.kill(before.pid, signal.SIGKILL)
        dead = system.until_state("worker:a", "dead")
        assert (dead.pid, dead.incarnation, dead.detail) == (None, 0, "signal 9 (SIGKILL)")
        after = system.until_state("worker:a", "ready")
        assert after.incarnation == 1
        assert after.pid not in (None, before.pid)
        assert system.states("cache") == ["starting", "ready"], "the others do not notice"


def test_every_actor_gets_the_roster_at_hello_and_at_each_change() -> None:
    with System({"worker:a": actors.Parrot, "worker:b": actors.Parrot}) as system:
        roster = system.until(all_ready)
        known: dict[str, tuple[str, ...]] = {}
        while known.get("worker:b") != ("worker:a#0=ready", "worker:b#0=ready"):
            peer, message = system.hear()
            if isinstance(message, actors.Saw):
                known[peer.name] = message.roster
        victim = roster.find("worker:a")
        assert victim is not None
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        seen: list[tuple[str, ...]] = []
        while seen[-1:] != [("worker:a#1=ready", "worker:b#0=ready")]:
            peer, message = system.hear()
            if peer.name == "worker:b" and isinstance(message, actors.Saw):
                seen.append(message.roster)
        assert ("worker:a#0=dead", "worker:b#0=ready") in seen
        assert ("worker:a#1=starting", "worker:b#0=ready") in seen


def test_the_roster_says_what_each_actor_is() -> None:
    with System({"worker:a": actors.Parrot}) as system:
        actor = system.until_state("worker:a", "ready")
        assert actor == ActorStatus("worker:a", "worker", 0, "ready", actor.pid, "talking", "a")


def test_the_scheduler_can_have_a_worker_killed_once_per_incarnation() -> None:
    with System({"scheduler": actors.Assassin, "worker:a": actors.Quiet}) as system:
        dead = system.until_state("worker:a", "dead")
        assert dead.detail == "killed by the scheduler: no progress for 7 s"
        system.until_state("worker:a", "ready", incarnation=1)
        # It asks again for incarnation 0 at each roster; the next death must come from elsewhere.
        pid = system.history[-1].find("worker:a")
        assert pid is not None
        assert pid.pid is not None
        os.kill(pid.pid, signal.SIGUSR1)
        assert system.until_state("worker:a", "dead").detail == f"signal {signal.SIGUSR1} (SIGUSR1)"


def test_a_kill_that_comes_after_the_death_does_not_hide_its_reason() -> None:
    news = LateNews()
    with System({"scheduler": actors.Quiet, "worker:a": actors.Quiet}, placement=news) as system:
        worker = system.until(all_ready).find("worker:a")
        assert worker is not None
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGUSR1)
        assert news.handles[worker.name].wait(LIMIT_S) == f"signal {signal.SIGUSR1} (SIGUSR1)"
        with Mailbox(Peer("scheduler", 0), system.config.control_endpoint) as scheduler:
            scheduler.kill(Kill(worker.name, 0, "it is silent"))
            scheduler.ready("the kill is out")
            system.until(lambda roster: roster.actors[0].detail == "the kill is out")
        news.told.set()
        assert system.until_state("worker:a", "dead").detail == f"signal {signal.SIGUSR1} (SIGUSR1)"


def test_an_actor_that_is_not_ready_in_time_is_killed_and_started_again() -> None:
    with System({"worker:a": actors.NeverReady, "gateway": actors.Quiet}, ready_timeout_s=0.5) as system:
        dead = system.until_state("worker:a", "dead")
        assert dead.detail == "was not ready within 0.5 s; raise ready_timeout_s if it needs longer"
        assert system.until_state("worker:a", "starting").incarnation == 1


def test_progress_extends_the_ready_deadline() -> None:
    with System({"worker:a": actors.SlowToLoad}, ready_timeout_s=1.5) as system:
        system.until_state("worker:a", "ready")
        details = [actor.detail for roster in system.history for actor in roster.actors if actor.state == "starting"]
        assert details == ["starting", *(f"loading part {step}" for step in range(6))]
        assert system.states("worker:a") == ["starting", "ready"]


def test_a_worker_that_dies_in_a_loop_fails_and_the_others_go_on() -> None:
    with System({"worker:a": actors.Quitting, "worker:b": actors.Quiet}) as system:
        failed = system.until_state("worker:a", "failed")
        assert failed.detail == "ended 5 times within 60 s; last: exit status 3"
        assert failed.incarnation == 4
        assert failed.pid is None
        system.until_state("worker:b", "ready")
        system.stop()
        assert system.outcome() is None


def test_serving_ends_with_the_reasons_if_every_model_fails_at_the_start() -> None:
    with System(
        {"gateway": actors.Quiet, "worker:a": actors.Misconfigured, "worker:b": actors.Misconfigured}
    ) as system:
        mend = "the folder is empty; fill it"
        assert system.outcome() == f"worker:a: {mend}; worker:b: {mend}"
        assert system.states("worker:a") == ["starting", "failed"], "no restart for a failure that it would not mend"
        assert system.states("gateway")[-1] == "stopped"


def test_serving_goes_on_if_a_model_that_was_ready_fails() -> None:
    with System({"gateway": actors.Quiet, "worker:a": actors.Crashing}) as system:
        failed = system.until_state("worker:a", "failed")
        assert failed.detail.endswith("last: ValueError: out of tea")
        gateway = system.history[-1].find("gateway")
        assert gateway is not None
        assert gateway.state in ("starting", "ready")


@pytest.mark.parametrize("vital", ["scheduler", "gateway"])
def test_serving_ends_if_the_scheduler_or_a_gateway_fails(vital: str) -> None:
    with System({"worker:a": actors.Quiet, vital: actors.Misconfigured}) as system:
        assert system.outcome() == f"{vital}: the folder is empty; fill it"
        assert [actor.state for actor in system.history[-1].actors if actor.name != vital] == ["stopped"]


def test_serving_goes_on_without_a_cache() -> None:
    with System({**WHOLE, "cache": actors.Misconfigured}) as system:
        system.until(lambda roster: [actor.state for actor in roster.actors] == ["failed", "ready", "ready", "ready"])


def test_an_unexpected_error_is_worth_a_restart_and_names_itself() -> None:
    with System({"worker:a": actors.Unbuildable, "worker:b": actors.Quiet}) as system:
        assert system.until_state("worker:a", "dead").detail == "RuntimeError: the constructor raised"
        assert system.until_state("worker:a", "starting").incarnation == 1


def test_an_actor_of_another_protocol_version_is_refused() -> None:
    with System({"worker:a": actors.Foreign, "worker:b": actors.Quiet}) as system:
        failed = system.until_state("worker:a", "failed")
        assert f"speaks protocol {PROTOCOL + 1} instead of {PROTOCOL}" in failed.detail


def test_bytes_that_are_no_message_do_no_harm() -> None:
    with System({"worker:a": actors.Garbling}) as system:
        system.until_state("worker:a", "ready")


def test_an_actor_that_does_not_stop_is_killed_after_its_grace() -> None:
    with System({"gateway": actors.Stubborn}, stop_grace_s=0.2) as system:
        system.until_state("gateway", "ready")
        system.stop()
        asked = now()
        assert system.outcome() is None
        assert 0.2 <= now() - asked < 10.0
        assert system.states("gateway") == ["starting", "ready", "stopping", "stopped"]


def test_a_second_request_to_stop_kills_at_once() -> None:
    with System({"gateway": actors.Stubborn, "worker:a": actors.Quiet}, stop_grace_s=25.0) as system:
        system.until(all_ready)
        system.stop()
        system.until_state("gateway", "stopping")
        system.stop()
        asked = now()
        assert system.outcome() is None
        assert now() - asked < 10.0
        assert [actor.state for actor in system.history[-1].actors] == ["stopped", "stopped"]


def test_what_still_loads_is_not_waited_for_when_stopping() -> None:
    with System({"gateway": actors.NeverReady, "worker:a": actors.NeverReady}, stop_grace_s=25.0) as system:
        system.until(lambda roster: all(actor.state == "starting" for actor in roster.actors))
        system.stop()
        asked = now()
        assert system.outcome() is None
        assert now() - asked < 10.0


def test_an_actor_that_waits_for_its_restart_stops_with_the_rest() -> None:
    patient = RestartPolicy(first_s=25.0)
    with System({"worker:a": actors.Quitting, "worker:b": actors.Quiet}, policy=patient) as system:
        system.until_state("worker:a", "dead")
        system.stop()
        asked = now()
        assert system.outcome() is None
        assert now() - asked < 10.0
        assert system.states("worker:a") == ["starting", "dead", "stopped"]


def test_a_message_to_an_incarnation_that_is_gone_is_refused() -> None:
    with System({"worker:a": actors.Parrot}) as system:
        peer, _ = system.hear()
        assert system.talk.send(peer, actors.Quit(3))
        system.until_state("worker:a", "ready", incarnation=1)
        assert not system.talk.send(Peer("worker:a", 0), actors.Say("anybody there?"))

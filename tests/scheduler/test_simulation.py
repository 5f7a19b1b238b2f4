"""Random lives of the whole system, in simulated time."""

from collections import Counter

import pytest

from pomona.config import SchedulerConfig
from tests.scheduler.simulator import Faults, Simulation

PATIENT = SchedulerConfig(max_waiting=30, max_waiting_s=10_000, progress_timeout_s=5, max_resumes=10_000)


def rest(simulation: Simulation, seconds: float, arrivals_s: float) -> Counter[str]:
    simulation.run(seconds, arrivals_s)
    simulation.check_rest()
    return Counter(asked.ends[0] for asked in simulation.outcomes())


@pytest.mark.parametrize("seed", range(4))
def test_calm_load_ends_every_request_once_with_its_own_tokens(seed: int) -> None:
    ends = rest(Simulation(seed, scheduler=PATIENT), seconds=5, arrivals_s=0.05)
    assert ends["finished"] > 30
    assert ends["cancelled"] > 0
    assert ends["context_length"] > 0
    assert set(ends) <= {"finished", "cancelled", "context_length"}


@pytest.mark.parametrize("seed", range(4))
def test_a_flood_keeps_the_queue_bounded_and_refuses_the_rest(seed: int) -> None:
    simulation = Simulation(seed, scheduler=PATIENT)
    ends = rest(simulation, seconds=2, arrivals_s=0.002)
    assert simulation.most_waiting == PATIENT.max_waiting
    assert ends["queue_full"] > 0
    assert ends["finished"] > PATIENT.max_waiting


@pytest.mark.parametrize("seed", range(4))
def test_impatient_queues_refuse_what_waited_too_long(seed: int) -> None:
    hasty = SchedulerConfig(max_waiting=30, max_waiting_s=0.2, progress_timeout_s=5)
    ends = rest(Simulation(seed, scheduler=hasty), seconds=2, arrivals_s=0.005)
    assert ends["waited_too_long"] > 0
    assert ends["finished"] > 0


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_doubled_while_everything_dies(seed: int) -> None:
    faults = Faults(
        worker_death_s=0.7,
        worker_hang_s=4,
        scheduler_death_s=2,
        gateway_death_s=5,
        event_lost=0.002,
        event_twice=0.01,
    )
    simulation = Simulation(seed, faults, scheduler=PATIENT)
    ends = rest(simulation, seconds=12, arrivals_s=0.05)
    assert simulation.incarnation > 0
    assert ends["finished"] > 10  # of the gateways that live
    assert set(ends) <= {"finished", "cancelled", "context_length", "queue_full"}


@pytest.mark.parametrize("seed", range(3))
def test_hung_workers_are_killed_and_their_requests_finish_elsewhere(seed: int) -> None:
    simulation = Simulation(seed, Faults(worker_hang_s=1), scheduler=PATIENT)
    ends = rest(simulation, seconds=6, arrivals_s=0.05)
    assert simulation.kills > 0
    assert ends["finished"] > 30


def test_a_request_that_only_meets_dying_workers_is_called_poison() -> None:
    fragile = SchedulerConfig(max_waiting=1000, max_waiting_s=10_000, max_resumes=1)
    ends = rest(Simulation(1, Faults(worker_death_s=0.05), scheduler=fragile), seconds=6, arrivals_s=0.05)
    assert ends["poison"] > 0


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(100, 400))
def test_campaign_of_disasters(seed: int) -> None:
    faults = Faults(0.5, 3, 1, 3, 0.005, 0.02)
    rest(Simulation(seed, faults, scheduler=PATIENT, workers=1 + seed % 3), seconds=20, arrivals_s=0.04)

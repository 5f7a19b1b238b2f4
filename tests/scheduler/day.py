"""A day of mixed load in the simulation: a cost for every step, memory for KV, rush hours, bursts, mishaps."""

import math
from collections import Counter
from dataclasses import dataclass

from pomona.config import SchedulerConfig
from pomona.runtime.wire import Message
from pomona.scheduler.messages import Cancelled, Events, Refused
from pomona.scheduler.ranking import MAX_OVERTAKEN
from pomona.workers.kv_cost import STEP, KVCost
from pomona.workers.messages import Assign, Request, WorkerReady
from tests.scheduler.rows import request
from tests.scheduler.simulator import Faults, SimulatedGateway, SimulatedWorker, Simulation

DAY_S = 24 * 3600.0
CONTEXT = 2048
COST = KVCost(per_token=2)
BUDGET = COST.bytes_for(6 * STEP)
"""Of one worker: six small requests, or a large one and two small ones."""
LARGE = 3 * STEP + 1
"""Tokens, in prompt and answer, from which a request counts as large."""

MISHAPS = Faults(worker_death_s=2 * 3600, worker_hang_s=6 * 3600, scheduler_death_s=6 * 3600, gateway_death_s=6 * 3600)
LIMITS = SchedulerConfig(
    max_waiting=100,
    max_waiting_s=1200,
    progress_timeout_s=120,
    max_resumes=10,
    max_per_client=60,
    max_prompt_tokens=1200,
    max_total_s=1800,
)


@dataclass(frozen=True)
class Service:
    """How a request that was served fared."""

    request: Request
    waited_s: float
    """From its submission to its first token."""

    @property
    def large(self) -> bool:
        return len(self.request.prompt) + self.request.limits.max_tokens >= LARGE


class Day(Simulation):
    """Clients `calm0` to `calm2` ask at any time, by night less; `flood` asks for many things at once, now and then."""

    def __init__(self, seed: int, faults: Faults = MISHAPS, *, scheduler: SchedulerConfig = LIMITS) -> None:
        self._asked_at: dict[str, float] = {}
        self._fresh: dict[str, int] = {}
        self._flooding = False
        self.served: dict[str, Service] = {}
        self.ends: Counter[str] = Counter()
        self.preempted = self.most_overtaken = 0
        super().__init__(seed, faults, scheduler=scheduler)

    def live(self, arrivals_s: float, bursts_s: float) -> None:
        """Until nothing of the day is left. Both are mean seconds, between requests and between bursts."""
        self.until = DAY_S
        self.repeat(bursts_s, self.burst)
        self.run(DAY_S, arrivals_s)

    # load

    def ask(self) -> None:
        rush = 0.6 - 0.4 * math.cos(2 * math.pi * self.now / DAY_S)
        if self._flooding or self.random.random() < rush:
            super().ask()

    def burst(self) -> None:
        self._flooding = True
        for _ in range(self.random.randint(20, 90)):
            self.ask()
        self._flooding = False

    def new_request(self, id: str) -> Request:
        self._asked_at[id] = self.now
        longest = self.random.choices((60, 400, 1000, 1600), (80, 12, 7, 1))[0]
        return request(
            id,
            model=self.random.choice(("m", "m", "n")),
            prompt=(7,) * self.random.randint(1, longest),
            max_tokens=self.random.randint(1, 40),
            seed=self.random.getrandbits(64),
            client="flood" if self._flooding else f"calm{self.random.randrange(3)}",
            priority=self.random.choice((0, 1)) if self._flooding else self.random.choices((-1, 0, 1), (1, 8, 2))[0],
        )

    def gateway_hears(self, gateway: SimulatedGateway, message: Message) -> None:
        super().gateway_hears(gateway, message)
        match message:
            case Events(events=events):
                for event in events:
                    self.ends["finished"] += event.finish is not None
                    if event.id not in self.served:
                        asked = gateway.asked[event.id].request
                        self.served[event.id] = Service(asked, self.now - self._asked_at[event.id])
            case Refused(kind=kind):
                self.ends[kind] += 1
            case Cancelled():
                self.ends["cancelled"] += 1

    def worst_s(self, *, flooding: bool, priorities: tuple[int, ...], large: bool = False) -> float:
        """The longest wait of those that were served, of the clients that flood or of those that do not."""
        return max(
            service.waited_s
            for service in self.served.values()
            if (service.request.client == "flood") == flooding
            and service.request.priority in priorities
            and (service.large or not large)
        )

    # workers

    def ready(self, worker: SimulatedWorker) -> WorkerReady:
        return WorkerReady(worker.model, worker.rows.max_running, CONTEXT, COST, BUDGET)

    def worker_hears(self, worker: SimulatedWorker, message: Message) -> None:
        if isinstance(message, Assign):
            name = worker.peer.name
            self._fresh[name] = self._fresh.get(name, 0) + len(message.request.prompt) + len(message.request.committed)
        super().worker_hears(worker, message)
        held = worker.rows.requests.values()
        assert sum(COST.bytes_for(len(each.prompt) + each.limits.max_tokens) for each in held) <= BUDGET

    def step_s(self, worker: SimulatedWorker) -> float:
        """A base, more for each row, and more for each token of the prompts that are new."""
        return 2.5 + 0.5 * len(worker.rows.requests) + 0.012 * self._fresh.pop(worker.peer.name, 0)

    def width(self) -> int:
        return self.random.randint(2, 8)

    # laws

    def check(self) -> None:
        super().check()
        if self.core is None:
            return
        state = self.core.state
        rows = sum(worker.max_running for worker in state.workers.values())
        for job in state.jobs.values():
            self.most_overtaken = max(self.most_overtaken, job.overtaken)
            assert job.overtaken <= MAX_OVERTAKEN + rows, f"{job.id} is overtaken for ever"
            assert job.ending or self.now <= job.admitted + LIMITS.max_total_s + 1e-6, f"{job.id} outlives its time"
        for queue in state.queues.values():
            oldest = next(iter(queue.values()))
            assert self.now <= oldest.waiting_since + LIMITS.max_waiting_s + 1e-6, f"{oldest.id} waits for ever"
        counters = self.core.counters
        self.preempted = max(self.preempted, counters.preempted)
        ended = counters.finished + counters.cancelled + sum(counters.refused.values())
        assert counters.submitted == ended + len(state.jobs)

"""A discrete-event simulation around the scheduler's core: clients, workers, a supervisor and a slow network.

Messages of one link keep their order and take a random time; what is under way on a link dies with either end. The
clients follow the same rules as the real one: remember what was seen, submit again to a new scheduler.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pomona.config import Config, ModelConfig, SchedulerConfig
from pomona.runtime.control import ActorKind, ActorName, ActorState, ActorStatus, Roster
from pomona.runtime.mailbox import Peer
from pomona.runtime.wire import Message, replace
from pomona.scheduler.core import Core
from pomona.scheduler.job import Phase
from pomona.scheduler.messages import (
    Cancelled,
    CancelRequest,
    Events,
    GatewayHello,
    Models,
    Progressed,
    Refused,
    Submit,
)
from pomona.scheduler.plan import next_deadline
from pomona.scheduler.sequence import place
from pomona.scheduler.state import State
from pomona.workers.messages import (
    Assign,
    Cancel,
    Drain,
    EndTurn,
    Request,
    RequestId,
    Stepped,
    Turn,
    WorkerReady,
    WorkerStats,
)
from pomona.workers.turn import OwnTurn
from tests.scheduler.rows import Rows, answer, request

CONTEXT = 64


@dataclass(frozen=True)
class Faults:
    """How often things go wrong: mean seconds between them, 0 for never; and shares of events."""

    worker_death_s: float = 0.0
    worker_hang_s: float = 0.0
    scheduler_death_s: float = 0.0
    gateway_death_s: float = 0.0
    event_lost: float = 0.0
    event_twice: float = 0.0


@dataclass
class Asked:
    """A request as its client sees it."""

    request: Request
    seen: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    cancelled: bool = False
    sent: bool = False


class SimulatedWorker:
    def __init__(self, peer: Peer, model: str, max_running: int) -> None:
        self.peer, self.model, self.rows = peer, model, Rows(max_running)
        self.alive, self.hung, self.stepping = True, False, False
        self.turn = OwnTurn()


class SimulatedGateway:
    def __init__(self, peer: Peer) -> None:
        self.peer, self.alive, self.greeted = peer, True, False
        self.asked: dict[RequestId, Asked] = {}


class Simulation:
    def __init__(self, seed: int, faults: Faults = Faults(), *, scheduler: SchedulerConfig, workers: int = 2) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.now = 0.0
        self.until = 0.0
        self._order = itertools.count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._ids = itertools.count()
        self._last: dict[tuple[Peer, Peer], float] = {}
        models = tuple(ModelConfig(id=id, path="-") for id in ("m", "n"))
        self.config = Config(models=models, scheduler=scheduler)
        self.statuses: dict[str, ActorStatus] = {}
        self.incarnation = 0
        self.core: Core | None = None
        self.workers: dict[str, SimulatedWorker] = {}
        self.gateways: dict[str, SimulatedGateway] = {}
        self.kills = 0
        self.most_waiting = 0
        self._wake = -1.0
        self.boot_scheduler()
        for model in ("m", "n"):
            for replica in range(workers):
                self.boot_worker(f"worker:{model}:{replica}", model, 0)
        for number in range(2):
            self.boot_gateway(f"gateway:{number}", 0)

    # time

    def after(self, delay: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + delay, next(self._order), act))

    def soon(self, mean: float) -> float:
        return self.random.expovariate(1.0 / mean)

    def run(self, seconds: float, arrivals_s: float) -> None:
        """Load and faults for some seconds, then calm until nothing happens any more."""
        self.until = seconds
        self.repeat(arrivals_s, self.ask)
        self.repeat(arrivals_s * 4, self.cancel_any)
        for mean, act in (
            (self.faults.worker_death_s, self.kill_any_worker),
            (self.faults.worker_hang_s, self.hang_any_worker),
            (self.faults.scheduler_death_s, self.kill_scheduler),
            (self.faults.gateway_death_s, self.kill_any_gateway),
        ):
            if mean:
                self.repeat(mean, act)
        for _ in range(400_000):
            if not self._agenda:
                return
            self.now, _, act = heapq.heappop(self._agenda)
            act()
            self.check()
        raise AssertionError("the simulation does not come to rest")

    def repeat(self, mean: float, act: Callable[[], None]) -> None:
        def again() -> None:
            if self.now < self.until:
                act()
                self.after(self.soon(mean), again)

        self.after(self.soon(mean), again)

    # network

    def send(self, sender: Peer, to: Peer, deliver: Callable[[], None], alive: Callable[[], bool]) -> None:
        due = max(self.now + self.soon(0.002), self._last.get((sender, to), 0.0))
        self._last[sender, to] = due
        self.after(due - self.now, lambda: deliver() if alive() else None)

    def to_scheduler(self, sender: Peer, message: Message, alive: Callable[[], bool]) -> None:
        core = self.core
        if core is not None:
            here = Peer("scheduler", self.incarnation)
            self.send(sender, here, lambda: self.hear(sender, message), lambda: alive() and self.core is core)

    def hear(self, sender: Peer, message: Message) -> None:
        assert self.core is not None
        self.core.receive(sender, message, self.now)  # type: ignore[arg-type]
        self.turn()

    def turn(self) -> None:
        """What the actor's loop does after it took something in."""
        core = self.core
        assert core is not None
        core.decide(self.now)
        here = Peer("scheduler", self.incarnation)
        for peer, message in core.outbox.take_messages():
            self.dispatch(here, peer, message)
        for kill in core.outbox.take_kills():
            self.kills += 1
            self.after(self.soon(0.01), lambda kill=kill: self.kill_worker(kill.name, kill.incarnation))
        deadline = next_deadline(core.state, self.now)
        if deadline is not None and not self._woken(deadline):
            self._wake = self.now + deadline
            self.after(deadline, lambda: self.turn() if self.core is core else None)

    def _woken(self, deadline: float) -> bool:
        return self.now < self._wake <= self.now + deadline

    def dispatch(self, here: Peer, peer: Peer, message: Message) -> None:
        core = self.core
        worker = next((w for w in self.workers.values() if w.peer == peer), None)
        gateway = next((g for g in self.gateways.values() if g.peer == peer), None)
        if worker is not None:
            self.send(
                here, peer, lambda: self.worker_hears(worker, message), lambda: worker.alive and self.core is core
            )
        elif gateway is not None:
            self.send(
                here, peer, lambda: self.gateway_hears(gateway, message), lambda: gateway.alive and self.core is core
            )

    # supervisor

    def declare(
        self, name: str, kind: ActorKind, incarnation: int, state: ActorState, model: str | None = None
    ) -> None:
        self.statuses[name] = ActorStatus(ActorName(name), kind, incarnation, state, model=model)
        roster, core = Roster(tuple(self.statuses.values())), self.core

        def tell() -> None:
            if core is not None and self.core is core:
                core.roster_changed(roster, self.now)
                self.turn()

        self.send(Peer("supervisor", 0), Peer("scheduler", self.incarnation), tell, lambda: True)

    def boot_scheduler(self) -> None:
        self.core, self._wake = Core(self.config), -1.0
        if self.statuses:
            self.core.roster_changed(Roster(tuple(self.statuses.values())), self.now)
        for worker in self.workers.values():
            self.after(self.soon(0.05), lambda worker=worker, core=self.core: self.join(worker, core))
        for gateway in self.gateways.values():
            self.after(self.soon(0.05), lambda gateway=gateway, core=self.core: self.greet(gateway, core))

    def kill_scheduler(self) -> None:
        if self.core is not None:
            self.core = None
            self.incarnation += 1
            for gateway in self.gateways.values():
                gateway.greeted = False
            self.after(self.soon(0.3), self.boot_scheduler)

    # workers

    def boot_worker(self, name: str, model: str, incarnation: int) -> None:
        worker = self.workers[name] = SimulatedWorker(Peer(name, incarnation), model, self.random.randint(1, 4))
        self.declare(name, "worker", incarnation, "ready", model)
        self.after(self.soon(0.05), lambda core=self.core: self.join(worker, core))

    def join(self, worker: SimulatedWorker, core: Core | None) -> None:
        """A fresh link to a scheduler: the rows of a former one are dropped."""
        if core is not None and core is self.core and worker.alive:
            worker.rows.clear()
            worker.turn.begin_anew()
            self.to_scheduler(worker.peer, self.ready(worker), lambda: worker.alive)

    def ready(self, worker: SimulatedWorker) -> WorkerReady:
        return WorkerReady(worker.model, worker.rows.max_running, CONTEXT)

    def step_s(self, worker: SimulatedWorker) -> float:
        """Seconds that its next step takes."""
        return self.soon(0.02)

    def width(self) -> int:
        """Tokens that one row commits in one step."""
        return self.random.choice((1, 1, 2, 3))

    def worker_hears(self, worker: SimulatedWorker, message: Message) -> None:
        match message:
            case Assign(request=assigned):
                worker.rows.assign(assigned)
            case Cancel(id=id):
                if not worker.hung:
                    self.to_scheduler(worker.peer, worker.rows.cancel(id), lambda: worker.alive)
            case Drain():
                worker.rows.clear()
            case Turn():
                worker.turn.take(message)
            case EndTurn():
                worker.turn.recall(message)
        self.go_on(worker)

    def go_on(self, worker: SimulatedWorker) -> None:
        """What a worker's loop does between two steps."""
        if worker.stepping or worker.hung:
            return
        if worker.turn.may_step and worker.rows.requests:
            worker.stepping = True
            seconds = self.step_s(worker)
            worker.turn.use(seconds)
            self.after(seconds, lambda: self.step(worker))
        elif worker.turn.is_over(busy=bool(worker.rows.requests)):
            self.to_scheduler(worker.peer, worker.turn.end(), lambda: worker.alive)

    def step(self, worker: SimulatedWorker) -> None:
        worker.stepping = False
        if not worker.alive or worker.hung:
            return
        events = []
        for made in worker.rows.step(self.width() for _ in itertools.count()):
            if self.random.random() >= self.faults.event_lost or made.finish is not None:
                events.append(made)
            if self.random.random() < self.faults.event_twice:
                events.append(made)
        stepped = Stepped(tuple(events), WorkerStats(running=len(worker.rows.requests)))
        self.to_scheduler(worker.peer, stepped, lambda: worker.alive)
        if worker.turn.is_over(busy=bool(worker.rows.requests)):
            self.to_scheduler(worker.peer, worker.turn.end(), lambda: worker.alive)
        self.go_on(worker)

    def kill_worker(self, name: str, incarnation: int) -> None:
        worker = self.workers[name]
        if worker.peer.incarnation == incarnation and worker.alive:
            worker.alive = False
            self.declare(name, "worker", incarnation, "dead", worker.model)
            self.after(self.soon(0.3), lambda: self.boot_worker(name, worker.model, incarnation + 1))

    def any_worker(self) -> SimulatedWorker:
        return self.random.choice(list(self.workers.values()))

    def kill_any_worker(self) -> None:
        self.kill_worker(*self.any_worker().peer)

    def hang_any_worker(self) -> None:
        self.any_worker().hung = True

    # clients

    def boot_gateway(self, name: str, incarnation: int) -> None:
        gateway = self.gateways[name] = SimulatedGateway(Peer(name, incarnation))
        self.declare(name, "gateway", incarnation, "ready")
        self.after(self.soon(0.05), lambda core=self.core: self.greet(gateway, core))

    def greet(self, gateway: SimulatedGateway, core: Core | None) -> None:
        if core is not None and core is self.core and gateway.alive:
            self.to_scheduler(gateway.peer, GatewayHello(), lambda: gateway.alive)
            gateway.greeted = True
            for asked in gateway.asked.values():
                if not asked.ends:
                    self.submit(gateway, asked)

    def submit(self, gateway: SimulatedGateway, asked: Asked) -> None:
        again = replace(asked.request, committed=tuple(asked.seen))
        self.to_scheduler(gateway.peer, Submit(again, resumed=asked.sent), lambda: gateway.alive)
        asked.sent = True

    def kill_any_gateway(self) -> None:
        gateway = self.random.choice(list(self.gateways.values()))
        if gateway.alive:
            name, incarnation = gateway.peer
            gateway.alive = False
            self.declare(name, "gateway", incarnation, "dead")
            self.after(self.soon(0.3), lambda: self.boot_gateway(name, incarnation + 1))

    def new_request(self, id: str) -> Request:
        return request(
            id,
            model=self.random.choice(("m", "m", "n")),
            prompt=tuple(range(self.random.randint(1, 70))),
            max_tokens=self.random.randint(0, 20),
            seed=self.random.getrandbits(64),
            client=self.random.choice("ab"),
            priority=self.random.choice((0, 0, 1)),
        )

    def ask(self) -> None:
        gateway = self.random.choice(list(self.gateways.values()))
        wanted = self.new_request(f"r{next(self._ids)}")
        if gateway.alive:
            asked = gateway.asked[wanted.id] = Asked(wanted)
            if gateway.greeted:
                self.submit(gateway, asked)

    def cancel_any(self) -> None:
        gateway = self.random.choice(list(self.gateways.values()))
        live = [asked for asked in gateway.asked.values() if not asked.ends]
        if gateway.alive and gateway.greeted and live:
            asked = self.random.choice(live)
            asked.cancelled = True
            self.to_scheduler(gateway.peer, CancelRequest(asked.request.id), lambda: gateway.alive)

    def gateway_hears(self, gateway: SimulatedGateway, message: Message) -> None:
        match message:
            case Events(events=events):
                for event in events:
                    asked = gateway.asked[event.id]
                    assert not asked.ends, f"{event.id} goes on after its end"
                    assert place(event, len(asked.seen)) == "next", f"{event.id} is out of order"
                    asked.seen.extend(event.tokens)
                    if event.finish is not None:
                        asked.ends.append("finished")
            case Refused(id=id, kind=kind):
                gateway.asked[id].ends.append(kind)
            case Cancelled(id=id):
                asked = gateway.asked[id]
                assert asked.cancelled
                if not asked.ends:  # it may have ended while the cancel was under way
                    asked.ends.append("cancelled")
            case Models() | Progressed():
                pass

    # invariants

    def check(self) -> None:
        if self.core is not None:
            check(self.core.state)
            self.most_waiting = max(self.most_waiting, self.core.state.waiting)

    def outcomes(self) -> Iterator[Asked]:
        """Every request of the gateways that live."""
        for gateway in self.gateways.values():
            yield from gateway.asked.values()

    def check_rest(self) -> None:
        """Nothing happens any more: all that was asked has ended once, in full, and nothing is held."""
        for asked in self.outcomes():
            assert len(asked.ends) == 1, f"{asked.request.id} ended {asked.ends}"
            full = answer(asked.request)
            assert asked.seen == (full if asked.ends == ["finished"] else full[: len(asked.seen)])
        assert self.core is not None
        state, counters = self.core.state, self.core.counters
        assert not state.jobs
        assert not state.waiting
        assert not any(worker.rows.requests for worker in self.workers.values() if worker.alive)
        assert counters.submitted == counters.finished + counters.cancelled + sum(counters.refused.values())


def check(state: State) -> None:
    """Every index of the state agrees with every other."""
    queued = [job for queue in state.queues.values() for job in queue.values()]
    held = [job for worker in state.workers.values() for job in worker.held.values()]
    assert state.waiting == len(queued) == sum(job.phase is Phase.WAITING for job in state.jobs.values())
    assert state.running == len(held)
    assert {job.id for job in queued} | {job.id for job in held} == set(state.jobs)
    for queue in state.queues.values():
        assert queue
        since = [job.waiting_since for job in queue.values()]
        assert since == sorted(since)
    for worker in state.workers.values():
        assert len(worker.held) <= worker.max_running
        assert all(job.worker == worker.peer for job in worker.held.values())
        assert set(worker.prefilled) <= set(worker.held)
        staying = [job for job in worker.held.values() if job.phase is Phase.RUNNING]
        assert len(staying) <= 1 or sum(job.kv_bytes for job in staying) <= worker.kv_capacity
    assert all((job.worker is not None) or not job.kv_bytes for job in state.jobs.values())
    assert all(job.phase is Phase.CANCELLING or not job.preempted for job in state.jobs.values())
    clients = Counter(job.request.client for job in state.jobs.values())
    assert all(state.shares.requests_of(client) == count for client, count in clients.items())

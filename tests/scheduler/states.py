"""States of a scheduler made by hand, and what a plan makes of them."""

from pomona.config import Config, ModelConfig, SchedulerConfig
from pomona.runtime.mailbox import Peer
from pomona.runtime.wire import replace
from pomona.scheduler.job import Job, Phase
from pomona.scheduler.plan import Command, Condemn, Dispatch, Expire, Preempt, Refuse
from pomona.scheduler.state import State, Worker
from pomona.workers.kv_cost import STEP, KVCost
from pomona.workers.messages import WorkerReady
from tests.scheduler.rows import request

GATEWAY = Peer("gateway", 0)
LIMITS = SchedulerConfig(max_waiting=5, max_waiting_s=100, progress_timeout_s=50)
COST = KVCost(per_token=1)
"""A row takes one byte a token, in steps."""


def state_of(*models: str, max_context: int | None = None, **limits: float) -> State:
    configured = tuple(ModelConfig(id=id, path="-", max_context=max_context) for id in models or ("m",))
    return State(Config(models=configured, scheduler=replace(LIMITS, **limits)))


def ready(
    state: State, name: str = "worker:m", rows: int = 2, *, model: str = "m", context: int = 100, steps: int = 0
) -> Worker:
    """`steps`: its budget of KV; a request of up to 256 tokens takes one, each further 256 one more. 0: no bound."""
    kv = (COST, steps * STEP) if steps else (KVCost(), 0)
    return state.register(Peer(name, 0), WorkerReady(model, rows, context, *kv), 0.0)


def wait(state: State, id: str, now: float = 0.0, **fields: object) -> Job:
    return state.admit(request(id, **fields), GATEWAY, now, resumed=False)  # type: ignore[arg-type]


def wait_big(state: State, id: str, steps: int, now: float = 0.0, **fields: object) -> Job:
    """Its KV takes so many steps."""
    return wait(state, id, now, prompt=(0,), max_tokens=steps * STEP - 1, **fields)


def dispatched(commands: tuple[Command, ...]) -> list[str]:
    return [command.id for command in commands if isinstance(command, Dispatch)]


def preempted(commands: tuple[Command, ...]) -> list[str]:
    return [command.id for command in commands if isinstance(command, Preempt)]


def carry_out(state: State, commands: tuple[Command, ...], now: float) -> None:
    for command in commands:
        match command:
            case Dispatch(id, worker, passed):
                state.assign(state.jobs[id], state.workers[worker], now)
                for other in passed:
                    state.jobs[other].overtaken += 1
            case Refuse(id):
                state.end(state.jobs[id], now)
            case Preempt(id):
                state.jobs[id].preempted = True
                state.withdraw(state.jobs[id], "again", now)
            case Expire(id):
                drop(state, id, now, "refuse")
            case Condemn(worker):
                for job in state.remove(state.workers[worker]):
                    state.requeue(job, now)


def drop(state: State, id: str, now: float, afterwards: str = "acknowledge") -> None:
    """Its worker is told to drop it."""
    job = next(job for job in state.jobs.values() if job.id == id)
    if job.phase is Phase.RUNNING:
        state.withdraw(job, afterwards, now)  # type: ignore[arg-type]
    job.afterwards = afterwards  # type: ignore[assignment]


def acknowledge(state: State, now: float) -> None:
    """The workers have dropped all that they were told to drop."""
    for job in list(state.jobs.values()):
        if job.phase is Phase.CANCELLING and job.afterwards == "again":
            state.requeue(job, now)
        elif job.phase is Phase.CANCELLING:
            state.end(job, now)

"""The composition root: which actors a configuration means, and the process that supervises them."""

import contextlib
import resource
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

import setproctitle
from rich.console import Console

from pomona.announcer import Announcer
from pomona.config import Config, ModelConfig
from pomona.home import Home
from pomona.listener import listen, url
from pomona.refusal import Refusal
from pomona.runtime import blas, log
from pomona.runtime.actor import ActorSpec
from pomona.runtime.control import ActorKind, ActorName, Roster
from pomona.runtime.folder import RuntimeFolder, short
from pomona.runtime.placement import LocalPlacement, Placement
from pomona.runtime.supervisor import Supervisor
from pomona.runtime.wire import replace

TARGETS: Mapping[ActorKind, str] = {
    "gateway": "pomona.gateway.actor:GatewayActor",
    "scheduler": "pomona.scheduler.actor:SchedulerActor",
    "worker": "pomona.workers.actor:WorkerActor",
    "cache": "pomona.cache.actor:CacheActor",
}

OPEN_FILES = 8192
"""Wanted at once; macOS gives a terminal's processes 256, which is fewer than the clients of a busy server."""


def serve(
    config: Config,
    *,
    console: Console | None = None,
    placement: Placement | None = None,
    targets: Mapping[ActorKind, str] = TARGETS,
) -> int:
    """Serve until SIGINT or SIGTERM; returns 0 once everything has stopped in order. Call it on the main thread.

    Fills in `runtime_folder` and `cache_folder` where they are empty, and the port where it is 0. Raises Refusal, one
    line for people, if it cannot start (port or folder in use, nothing to serve) or had to end (every model failed,
    scheduler or gateway beyond mending).
    """
    if not config.models:
        raise Refusal("no model to serve; name one, or see: pomona models list")
    setproctitle.setproctitle("pomona: supervisor")
    log.configure("supervisor")
    _raise_open_files()
    with listen(config.gateway.host, config.gateway.port) as listener:
        config = placed(config, port=listener.getsockname()[1], home=Home.resolve())
        with RuntimeFolder(Path(config.runtime_folder)):
            address = url(config.gateway.host, config.gateway.port)
            announcer = Announcer(console or Console(), config, address)

            def changed(roster: Roster) -> None:
                if any(actor.kind == "gateway" and actor.state in ("stopping", "stopped") for actor in roster.actors):
                    listener.close()  # a client that comes now is refused at once instead of waiting for nobody
                announcer.changed(roster)

            specs = plan(config, listener.fileno(), targets)
            supervisor = Supervisor(placement or LocalPlacement(), specs, config, changed)
            with contextlib.closing(supervisor), _stopped_by_signals(supervisor):
                reason = supervisor.run()
            announcer.finish(reason)
    if reason is not None:
        raise Refusal(reason)
    return 0


def placed(config: Config, port: int, home: Home) -> Config:
    """The configuration with its folders and the port that the server has.

    Each port has its own runtime folder, so that two servers of one user run side by side.
    """
    folder = Path(config.runtime_folder) if config.runtime_folder else home.run / str(port)
    return replace(
        config,
        gateway=replace(config.gateway, port=port),
        runtime_folder=str(short(folder.absolute())),
        cache_folder=cache_folder(config, home),
    )


def cache_folder(config: Config, home: Home) -> str:
    """Where the SSD tier of a server with this configuration lies."""
    return config.cache_folder or config.cache.folder or str(home.cache)


def plan(config: Config, listener: int, targets: Mapping[ActorKind, str] = TARGETS) -> list[ActorSpec]:
    """All actors of a system; `listener` is the descriptor of the listening socket. Keys go to the gateways alone."""
    inner = replace(config, gateway=replace(config.gateway, api_keys=()))

    def spec(kind: ActorKind, name: str, *, title: str, config: Config = inner) -> ActorSpec:
        return ActorSpec(
            name=ActorName(name),
            kind=kind,
            target=targets[kind],
            control=config.control_endpoint,
            config=config,
            title=f"pomona: {title}",
        )

    specs = [spec("scheduler", "scheduler", title="scheduler")]
    if config.cache.enabled:
        specs.append(spec("cache", "cache", title="cache"))
    for model in config.models:
        for name in worker_names(model):
            worker = spec("worker", name, title=f"worker {name.removeprefix('worker:')}")
            specs.append(replace(worker, model=model.id, environment=worker_environment(model)))
    for index in range(config.gateway.count):
        name = "gateway" if index == 0 else f"gateway:{index}"
        specs.append(replace(spec("gateway", name, title=name, config=config), inherit=(listener,)))
    return specs


def worker_names(model: ModelConfig) -> list[str]:
    if model.replicas == 1:
        return [f"worker:{model.id}"]
    return [f"worker:{model.id}:{replica}" for replica in range(model.replicas)]


def worker_environment(model: ModelConfig) -> dict[str, str]:
    """What a worker's process needs in its environment before it starts; all of it is decided here."""
    weights = sum(file.stat().st_size for file in Path(model.path).glob("model*.safetensors"))
    return blas.environment(blas.find(), weights=weights)


@contextlib.contextmanager
def _stopped_by_signals(supervisor: Supervisor) -> Iterator[None]:
    """SIGINT, SIGTERM and a hang-up order the stop; the second one kills."""

    def request(_number: int, _frame: FrameType | None) -> None:
        supervisor.request_stop()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup wants it ignored
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, request) for number in numbers}
    # A thread may take the signal while the main thread sleeps in a poll that then goes on sleeping; a byte wakes it.
    wakeup = signal.set_wakeup_fd(supervisor.wakeup_fd, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

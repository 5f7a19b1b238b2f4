import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pomona.config import CacheConfig, Config, ModelConfig, WorkerConfig
from pomona.runtime.actor import ActorSpec
from pomona.runtime.control import (
    ActorName,
    ActorState,
    ActorStatus,
    ActorToSupervisor,
    Failed,
    Hello,
    Progress,
    Ready,
    Roster,
    Stop,
)
from pomona.runtime.mailbox import Hub, Peer, now
from pomona.runtime.placement import REPORTED, Handle, LocalPlacement
from pomona.runtime.wire import Decoder
from pomona.workers.kv_measure import measure_kv_cost
from pomona.workers.messages import (
    Assign,
    Cancel,
    Drain,
    Dropped,
    RequestId,
    Stepped,
    Usage,
    WorkerReady,
    WorkerToScheduler,
)
from tests.workers.engines import Outcome, ask, make_engine, run, tiny, words

LIMIT_S = 60.0
NAME = ActorName("worker:tiny")
ME = Peer(NAME, 0)


class Bench:
    """A worker's process, with the supervisor's and the scheduler's ends of its links in the hands of the test."""

    def __init__(self, model: Path | None, **worker: int) -> None:
        self.runtime = Path(tempfile.mkdtemp(prefix="pomona-"))  # short, since socket paths are bounded
        self.config = Config(
            runtime_folder=str(self.runtime),
            cache=CacheConfig(enabled=False, ram_bytes=0),
            worker=WorkerConfig(**worker),
            models=(ModelConfig(id="tiny", path=str(model)),) if model is not None else (),
        )
        self.incarnation = 0
        """Of the scheduler."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.control: Hub[ActorToSupervisor] = Hub(
            self._context, self.config.control_endpoint, Decoder(ActorToSupervisor)
        )
        self.scheduler: Hub[WorkerToScheduler] = self._bind()
        self.handle: Handle = LocalPlacement().start(
            ActorSpec(
                name=NAME,
                kind="worker",
                target="pomona.workers.actor:WorkerActor",
                control=self.control.endpoint,
                config=self.config,
                title="pomona: worker tiny",
                model="tiny" if model is not None else None,
            )
        )

    def _bind(self) -> Hub[WorkerToScheduler]:
        return Hub(self._context, self.config.scheduler_endpoint, Decoder(WorkerToScheduler))

    def _await_word(self, hub: Hub[ActorToSupervisor] | Hub[WorkerToScheduler]) -> None:
        until = now() + LIMIT_S
        while not hub.socket.poll(250):
            assert now() < until, "the worker said nothing"
            ended = self.handle.wait(0.0)
            assert ended is None or hub.socket.poll(250), f"the worker ended without a word: {ended}"

    def hear(self) -> ActorToSupervisor:
        """The next word to the supervisor."""
        self._await_word(self.control)
        return next(self.control.drain())[1]

    def listen(self) -> WorkerToScheduler:
        """The next word to the scheduler."""
        self._await_word(self.scheduler)
        peer, message = next(self.scheduler.drain())
        assert peer == ME
        return message

    def greet(self) -> tuple[list[str], Ready]:
        """What it says it does until it is ready."""
        assert isinstance(self.hear(), Hello)
        texts = []
        while True:
            match self.hear():
                case Progress(text):
                    texts.append(text)
                case Ready() as ready:
                    return texts, ready
                case other:
                    raise AssertionError(other)

    def announce(self, incarnation: int, state: ActorState = "ready") -> None:
        """Tell the worker of a scheduler."""
        status = ActorStatus(ActorName("scheduler"), "scheduler", incarnation, state)
        assert self.control.send(ME, Roster((status,)))

    def meet(self) -> WorkerReady:
        """The scheduler dies and another binds in its place; the worker's first word on its new link.

        What the old link had still to say may come before.
        """
        self.scheduler.close()
        self.scheduler = self._bind()
        self.incarnation += 1
        self.announce(self.incarnation)
        while not isinstance(message := self.listen(), WorkerReady):
            assert isinstance(message, Stepped)
        return message

    def tell(self, message: Assign | Cancel | Drain) -> None:
        assert self.scheduler.send(ME, message)

    def collect(self, *names: str) -> dict[str, Outcome]:
        """Events until all the named requests have ended."""
        outcomes = {name: Outcome() for name in names}
        while any(outcome.finish is None for outcome in outcomes.values()):
            message = self.listen()
            assert isinstance(message, Stepped)
            for event in message.events:
                outcomes[event.id].take(event)
        return outcomes

    def close(self) -> None:
        self.handle.kill()
        assert self.handle.wait(LIMIT_S) is not None
        self.control.close()
        self.scheduler.close()
        self._context.term()
        shutil.rmtree(self.runtime)


@pytest.fixture(scope="module")
def serving(tiny_model: Path) -> Iterator[Bench]:
    """One process for all tests that leave it as they found it; each is another scheduler to it."""
    bench = Bench(tiny_model, max_running=3, prefill_chunk=16)
    try:
        texts, ready = bench.greet()
        assert texts == ["loading weights", "reading the vocabulary", "warming up"]
        assert ready.detail.startswith("tiny on ")
        yield bench
    finally:
        bench.close()


@pytest.fixture
def bench(serving: Bench) -> Bench:
    """The worker has just met a new scheduler."""
    ready = serving.meet()
    assert isinstance(ready, WorkerReady)
    assert (ready.model, ready.max_running, ready.context) == ("tiny", 3, 2048)
    assert ready.kv_budget > ready.kv_cost.bytes_for(2048) > 0
    return serving


def endless(name: str) -> Assign:
    """Longer than any test waits for."""
    return Assign(ask(name, words(1, 5), max_tokens=2000, ignore_eos=True))


def step_of(bench: Bench, name: str) -> Stepped:
    """The next step that has an event of the request."""
    while True:
        message = bench.listen()
        if isinstance(message, Stepped) and any(event.id == name for event in message.events):
            return message


def test_requests_are_served_as_the_engine_serves_them(bench: Bench) -> None:
    requests = [
        ask(f"r{seed}", words(seed, 30 + seed), sampling={"seed": seed, "temperature": 1.0}) for seed in range(5)
    ]
    for request in requests:
        bench.tell(Assign(request))
    assert bench.collect(*(request.id for request in requests)) == run(make_engine(tiny()), requests)


def test_each_step_tells_of_prefill_and_of_the_workers_state(bench: Bench) -> None:
    bench.tell(Assign(ask("r", words(1, 200), max_tokens=2, ignore_eos=True)))
    steps: list[Stepped] = []
    while not steps or not any(event.finish for event in steps[-1].events):
        message = bench.listen()
        assert isinstance(message, Stepped)
        steps.append(message)
    assert steps[0].stats.prefilling + steps[0].stats.running == 1
    assert [step.prefilled.get(RequestId("r"), 199) for step in steps] == sorted(
        step.prefilled.get(RequestId("r"), 199) for step in steps
    )
    last = steps[-1].stats
    assert (last.running, last.prefilling, last.waiting, last.kv_bytes) == (0, 0, 0, 0)
    assert last.memory_bytes > 0


def test_the_warm_up_is_not_counted(tiny_model: Path) -> None:
    bench = Bench(tiny_model, kv_bytes=10**6)
    try:
        bench.greet()
        cost = measure_kv_cost(tiny().model, 256)
        assert bench.meet() == WorkerReady("tiny", 16, 1792, cost, 10**6, ("ngram", "grammar"))
        bench.tell(Assign(ask("r", words(1, 20), max_tokens=3, ignore_eos=True)))
        while True:
            message = bench.listen()
            assert isinstance(message, Stepped)
            if any(event.finish for event in message.events):
                break
        assert (message.stats.prompt_tokens, message.stats.output_tokens) == (19, 3)
        assert bench.control.send(ME, Stop(2.0))
        assert bench.handle.wait(LIMIT_S) == "exit status 0"
    finally:
        bench.close()


def test_a_cancel_is_acknowledged_and_nothing_more_is_heard_of_the_request(bench: Bench) -> None:
    bench.tell(endless("r"))
    step_of(bench, "r")
    bench.tell(Cancel(RequestId("r")))
    committed = 1
    while not isinstance(message := bench.listen(), Dropped):
        assert isinstance(message, Stepped)
        committed += sum(len(event.tokens) for event in message.events)
    assert message == Dropped(RequestId("r"), Usage(5, committed))
    after = bench.listen()
    assert isinstance(after, Stepped)
    assert (after.events, after.stats.running, after.stats.waiting) == ((), 0, 0)
    bench.tell(Assign(ask("next", words(2, 5), max_tokens=1, ignore_eos=True)))
    assert set(bench.collect("next")) == {"next"}


def test_a_cancel_of_an_unknown_request_is_acknowledged_too(bench: Bench) -> None:
    bench.tell(Cancel(RequestId("nobody")))
    assert bench.listen() == Dropped(RequestId("nobody"), None)


def test_a_drain_drops_every_request(bench: Bench) -> None:
    bench.tell(endless("r"))
    step_of(bench, "r")
    bench.tell(Drain())
    bench.tell(Cancel(RequestId("r")))
    while isinstance(message := bench.listen(), Stepped):
        assert {event.id for event in message.events} <= {"r"}
    assert message == Dropped(RequestId("r"), None)


def test_a_new_scheduler_finds_a_clean_slate(bench: Bench) -> None:
    bench.tell(endless("old"))
    step_of(bench, "old")
    bench.meet()
    bench.tell(Assign(ask("new", words(2, 30), max_tokens=3, ignore_eos=True)))
    assert len(bench.collect("new")["new"].tokens) == 3
    bench.tell(Cancel(RequestId("old")))
    assert bench.listen() == Dropped(RequestId("old"), None)


def test_the_same_scheduler_is_not_met_twice_and_one_that_is_not_ready_not_at_all(bench: Bench) -> None:
    bench.announce(bench.incarnation + 1, "starting")
    bench.tell(Cancel(RequestId("first word")))
    assert bench.listen() == Dropped(RequestId("first word"), None)
    assert isinstance(bench.listen(), Stepped)
    bench.announce(bench.incarnation)
    bench.announce(bench.incarnation)
    bench.tell(Cancel(RequestId("word")))
    assert bench.listen() == Dropped(RequestId("word"), None)


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda folder: shutil.rmtree(folder), "model tiny: "),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no weights"), "model tiny: "),
        (lambda folder: (folder / "tokenizer.json").unlink(), "model tiny: "),
    ],
    ids=["missing", "corrupt", "no tokenizer"],
)
def test_a_model_that_cannot_be_loaded_is_one_line_that_names_it(
    tiny_model: Path, tmp_path: Path, break_it: object, reason: str
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "broken"))
    break_it(folder)  # type: ignore[operator]
    bench = Bench(folder)
    try:
        assert isinstance(bench.hear(), Hello)
        assert bench.hear() == Progress("loading weights")
        failed = bench.hear()
        assert isinstance(failed, Failed)
        assert failed.final
        assert failed.reason.startswith(reason)
        assert str(folder) in failed.reason
        assert "\n" not in failed.reason
        assert bench.handle.wait(LIMIT_S) == REPORTED
    finally:
        bench.close()


def test_a_memory_that_holds_no_short_request_is_one_line_that_names_the_setting(tiny_model: Path) -> None:
    least = measure_kv_cost(tiny().model, 256).bytes_for(1)
    bench = Bench(tiny_model, kv_bytes=least - 1)
    try:
        assert isinstance(bench.hear(), Hello)
        while isinstance(failed := bench.hear(), Progress):
            pass
        assert isinstance(failed, Failed)
        assert failed.final
        assert failed.reason == (
            f"model tiny: {least - 1} bytes (worker.kv_bytes, or half of what is free) hold no KV of a single short "
            f"request, which takes {least}; raise the setting or free memory"
        )
        assert bench.handle.wait(LIMIT_S) == REPORTED
    finally:
        bench.close()


def test_a_worker_without_a_model_says_so() -> None:
    bench = Bench(None)
    try:
        assert isinstance(bench.hear(), Hello)
        assert bench.hear() == Failed("actor worker:tiny was started without a model")
    finally:
        bench.close()


def test_a_scheduler_may_go_while_rows_run_and_the_worker_goes_on(bench: Bench) -> None:
    bench.tell(endless("r"))
    before = step_of(bench, "r").stats
    bench.announce(bench.incarnation, "dead")
    later = step_of(bench, "r").stats
    assert later.output_tokens > before.output_tokens

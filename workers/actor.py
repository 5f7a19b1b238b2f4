"""The worker actor: one process, one model, one engine; commands in, token events out."""

import logging
from pathlib import Path
from typing import Any, assert_never

from pomona.config import Config
from pomona.home import Home
from pomona.reasoning_formats import format_of
from pomona.runtime.actor import ActorFailure, ActorSpec
from pomona.runtime.mailbox import Link, Mailbox, now
from pomona.runtime.wire import Decoder, replace
from pomona.workers import device
from pomona.workers.constraint.compiler import Compiler
from pomona.workers.constraint.tokens import tokens_of
from pomona.workers.engine import Engine, EngineLimits
from pomona.workers.kv_measure import measure_kv_cost
from pomona.workers.messages import (
    Assign,
    Cancel,
    Drain,
    Dropped,
    EndTurn,
    SchedulerToWorker,
    Stepped,
    Turn,
    WorkerReady,
    WorkerStats,
)
from pomona.workers.models.error import ModelError
from pomona.workers.models.load import load
from pomona.workers.models.settings import context_length
from pomona.workers.prefix import PrefixStore
from pomona.workers.speculation.opening import open_proposers
from pomona.workers.storage import open_prefix_store
from pomona.workers.turn import OwnTurn
from pomona.workers.vocabulary import Vocabulary
from pomona.workers.warmup import warm_up

log = logging.getLogger(__name__)


class WorkerActor:
    """Serves one model. It runs steps on its own while it has work and a turn; commands are applied between steps.

    A scheduler that comes back as another incarnation finds a clean slate: it sends again what should run.
    """

    def __init__(self, spec: ActorSpec, config: Config) -> None:
        if spec.model is None:
            raise ActorFailure(f"actor {spec.name} was started without a model")
        self._config = config
        self._settings = config.model(spec.model)
        self._scheduler: Link[SchedulerToWorker] | None = None
        self._scheduler_incarnation = -1
        self._turn = OwnTurn()
        self._compiler: Compiler | None = None

    def run(self, mailbox: Mailbox) -> None:
        engine, prefixes, ready = self._open(mailbox)
        mailbox.ready(f"{self._settings.id} on {device.describe()}")
        try:
            while mailbox.stopping is None:
                mailbox.wait(0 if engine.busy and self._turn.may_step else None)
                if mailbox.poll_control():
                    prefixes.on_roster(mailbox.roster)
                    self._follow_scheduler(mailbox, engine, ready)
                self._obey(engine)
                if engine.busy and self._turn.may_step:
                    self._tell(engine)
                if self._turn.is_over(busy=engine.busy):
                    self._end_turn(engine)
        finally:
            prefixes.close(deadline_s=2.0)
            if self._compiler is not None:
                self._compiler.close(deadline_s=1.0)

    def _open(self, mailbox: Mailbox) -> tuple[Engine, PrefixStore, WorkerReady]:
        folder = Path(self._settings.path)
        mailbox.progress("loading weights")
        device.bound_buffer_cache()
        try:
            model, tokenizer = load(folder)
            vocabulary = Vocabulary(tokenizer)
            opened = open_proposers(self._settings, model, tokenizer, vocabulary, Home.resolve())
        except (ModelError, ValueError) as error:
            raise ActorFailure(f"model {self._settings.id}: {error}") from error
        prefixes = open_prefix_store(mailbox.me, self._config, folder, model)
        mailbox.progress("reading the vocabulary")
        self._compiler = self._open_compiler(vocabulary, tokenizer)
        worker = self._config.worker
        engine = Engine(
            opened.model,
            vocabulary,
            frozenset(tokenizer.eos_token_ids),
            EngineLimits(self._settings.max_running or worker.max_running, worker.prefill_chunk, worker.stall_s),
            prefixes,
            opened.proposers,
            self._compiler,
        )
        if engine.refusal:
            log.info("no-speculation model=%s: %s", self._settings.id, engine.refusal)
        warm_up(engine, len(vocabulary), mailbox.progress)
        context = context_length(folder)
        context = min(context, self._settings.max_context or context)
        cost = measure_kv_cost(model, worker.prefill_chunk)
        budget = worker.kv_bytes or device.free_bytes() // (2 * self._config.worker_count)
        fitting = cost.tokens_within(budget, context)
        if not fitting:
            raise ActorFailure(
                f"model {self._settings.id}: {budget} bytes (worker.kv_bytes, or half of what is free) hold no KV of a "
                f"single short request, which takes {cost.bytes_for(1)}; raise the setting or free memory"
            )
        if fitting < context:
            log.warning(
                "context-cut model=%s tokens=%d of=%d: %d bytes of KV (worker.kv_bytes, or half of what is free)",
                self._settings.id,
                fitting,
                context,
                budget,
            )
        ready = WorkerReady(self._settings.id, engine.max_running, fitting, cost, budget, engine.methods)
        return engine, prefixes, ready

    def _open_compiler(self, vocabulary: Vocabulary, tokenizer: Any) -> Compiler | None:
        try:
            compiler = Compiler(tokens_of(tokenizer, vocabulary))
        except (ValueError, RuntimeError) as error:
            log.warning("no-constraints model=%s: %s", self._settings.id, error)
            return None
        if format_of(str(tokenizer.chat_template)) is not None:
            compiler.spelling.prepare()
        return compiler

    def _follow_scheduler(self, mailbox: Mailbox, engine: Engine, ready: WorkerReady) -> None:
        """Open a new link to each new incarnation of the scheduler; what the old one asked for is dropped."""
        scheduler = mailbox.roster.find("scheduler")
        if scheduler is None or scheduler.state != "ready" or scheduler.incarnation == self._scheduler_incarnation:
            return
        if self._scheduler is not None:
            mailbox.drop(self._scheduler)
        engine.clear()
        self._turn.begin_anew()
        self._scheduler_incarnation = scheduler.incarnation
        self._scheduler = mailbox.link(self._config.scheduler_endpoint, Decoder(SchedulerToWorker))
        self._scheduler.send(ready)

    def _obey(self, engine: Engine) -> None:
        if self._scheduler is None:
            return
        for command in self._scheduler.drain():
            match command:
                case Assign(request):
                    engine.assign(request)
                case Cancel(request_id):
                    usage = engine.cancel(request_id)
                    self._scheduler.send(Dropped(request_id, usage))
                    self._scheduler.send(Stepped((), self._stats(engine)))
                case Drain():
                    engine.clear()
                case Turn():
                    self._turn.take(command)
                case EndTurn():
                    self._turn.recall(command)
                case _:
                    assert_never(command)

    def _tell(self, engine: Engine) -> None:
        begin = now()
        events = engine.step()
        self._turn.use(now() - begin)
        if self._scheduler is not None:
            self._scheduler.send(Stepped(tuple(events), self._stats(engine), engine.progress()))

    def _end_turn(self, engine: Engine) -> None:
        """The device is left idle: the last step's forward, which runs on behind the step, is a part of the turn."""
        begin = now()
        device.finish()
        engine.pause()
        self._turn.use(now() - begin)
        ended = self._turn.end()
        if self._scheduler is not None:
            self._scheduler.send(ended)

    def _stats(self, engine: Engine) -> WorkerStats:
        return replace(engine.stats(), turns=self._turn.ended, turn_seconds=self._turn.seconds)

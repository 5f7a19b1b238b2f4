"""The scheduler as an actor: the hub of the token traffic, and a loop around the core."""

from itertools import islice

from pomona.config import Config
from pomona.runtime.actor import ActorSpec
from pomona.runtime.mailbox import Hub, Mailbox, now
from pomona.runtime.wire import Decoder
from pomona.scheduler.core import Core, SchedulerInbound
from pomona.scheduler.plan import next_deadline

MAX_TURN = 1000
"""Messages taken in before the loop plans and sends again."""


class SchedulerActor:
    """Waits for messages or the nearest deadline, takes them in, plans, sends; ready once its hub is bound."""

    def __init__(self, spec: ActorSpec, config: Config) -> None:
        self._config = config
        self._core = Core(config)

    def run(self, mailbox: Mailbox) -> None:
        """Returns after an ordered stop: when nothing runs any more, or when its grace is over."""
        hub: Hub[SchedulerInbound] = mailbox.hub(self._config.scheduler_endpoint, Decoder(SchedulerInbound))
        mailbox.ready("models: " + ", ".join(model.id for model in self._config.models))
        core, stop_at = self._core, None
        while stop_at is None or not (core.idle or now() >= stop_at):
            mailbox.wait(self._patience(stop_at))
            if mailbox.poll_control():
                core.roster_changed(mailbox.roster, now())
            if mailbox.stopping is not None and stop_at is None:
                stop_at = now() + mailbox.stopping.grace_s
                core.stop(now())
            for peer, message in islice(hub.drain(), MAX_TURN):
                core.receive(peer, message, now())
            core.decide(now())
            self._flush(hub, mailbox)
        core.abandon(now())
        self._flush(hub, mailbox)

    def _patience(self, stop_at: float | None) -> float | None:
        """Seconds until something has to be done though nothing arrives; None: never."""
        deadline = next_deadline(self._core.state, now())
        if stop_at is None:
            return deadline
        grace = max(0.0, stop_at - now())
        return grace if deadline is None else min(grace, deadline)

    def _flush(self, hub: Hub[SchedulerInbound], mailbox: Mailbox) -> None:
        while messages := self._core.outbox.take_messages():
            for peer, message in messages:
                if not hub.send(peer, message):
                    self._core.unreachable(peer, now())
            self._core.decide(now())  # what an unreachable worker held may run elsewhere
        for kill in self._core.outbox.take_kills():
            mailbox.kill(kill)

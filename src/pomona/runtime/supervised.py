"""One actor as the supervisor sees it: an explicit state machine over incarnations. Pure: the time is passed in.

starting -> ready -> stopping -> stopped, with `dead` (a restart is planned) and `failed` (given up) on the side.
"""

from dataclasses import dataclass, field

from pomona.runtime.actor import ActorSpec
from pomona.runtime.backoff import RestartPolicy, RestartRecord
from pomona.runtime.control import ActorState, ActorStatus
from pomona.runtime.mailbox import Peer
from pomona.runtime.wire import replace

MOVES: dict[ActorState, tuple[ActorState, ...]] = {
    "starting": ("ready", "stopping", "dead", "failed", "stopped"),
    "ready": ("stopping", "dead", "failed"),
    "stopping": ("stopped", "failed"),
    "dead": ("starting", "stopped"),
    "stopped": (),
    "failed": (),
}

FAREWELL_S = 5.0
"""Seconds that an actor which has reported its failure may take to end."""


class IllegalMove(Exception):
    """A bug of the supervisor."""


@dataclass(slots=True)
class Supervised:
    """The life of one actor over its incarnations; the supervisor reports what happened, and reads what is due."""

    spec: ActorSpec
    ready_timeout_s: float
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    state: ActorState = "starting"
    pid: int | None = None
    detail: str = ""
    running: bool = False
    """A process of the current incarnation exists."""
    greeted: bool = False
    """It has said HELLO, so messages reach it."""
    reason: str | None = None
    """Why the current incarnation is about to end, where that is known before its exit."""
    deadline: float | None = None
    """When the running incarnation is to be killed unless something happens."""
    overdue: str = ""
    """The reason that will then be given."""
    killed: bool = False
    """The running incarnation was sent a kill."""
    restart_at: float | None = None
    was_ready: bool = False
    """Some incarnation was ready once."""
    _final: bool = False
    _ready_at: float | None = None
    _record: RestartRecord = field(init=False)

    def __post_init__(self) -> None:
        self._record = RestartRecord(self.policy)

    @property
    def peer(self) -> Peer:
        return Peer(self.spec.name, self.spec.incarnation)

    @property
    def over(self) -> bool:
        """It does not run and will not again."""
        return not self.running and self.state in ("stopped", "failed")

    def status(self) -> ActorStatus:
        return ActorStatus(
            name=self.spec.name,
            kind=self.spec.kind,
            incarnation=self.spec.incarnation,
            state=self.state,
            pid=self.pid if self.running else None,
            detail=self.detail,
            model=self.spec.model,
        )

    def _move(self, state: ActorState) -> None:
        if state not in MOVES[self.state]:
            raise IllegalMove(f"{self.spec.name}: {self.state} -> {state}")
        self.state = state

    def start(self, now: float) -> ActorSpec:
        """The specification of the incarnation to start now."""
        if self.running:
            raise IllegalMove(f"{self.spec.name}: started twice")
        if self.state == "dead":
            self._move("starting")
            self.spec = replace(self.spec, incarnation=self.spec.incarnation + 1)
        elif self.state != "starting":
            raise IllegalMove(f"{self.spec.name}: started while {self.state}")
        self.running, self.greeted, self.killed, self._final = True, False, False, False
        self.pid, self.reason, self.restart_at, self._ready_at = None, None, None, None
        self.detail = "starting"
        self._expect_ready(now)
        return self.spec

    def _expect_ready(self, now: float) -> None:
        self.deadline = now + self.ready_timeout_s
        self.overdue = f"was not ready within {self.ready_timeout_s:g} s; raise ready_timeout_s if it needs longer"

    def hello(self, pid: int) -> None:
        self.greeted, self.pid = True, pid

    def progress(self, text: str, now: float) -> None:
        if self.state == "starting" and self.reason is None:
            self.detail = text
            self._expect_ready(now)

    def ready(self, detail: str, now: float) -> None:
        """Legal again while ready: the actor renews its detail."""
        if self.state == "starting" and self.reason is None:
            self._move("ready")
            self.was_ready, self._ready_at, self.deadline = True, now, None
        if self.state == "ready":
            self.detail = detail

    def report(self, reason: str, final: bool, now: float) -> None:
        """The actor says why it is about to end."""
        self.reason, self._final = reason, final
        if self.state != "stopping":
            self.deadline, self.overdue = now + FAREWELL_S, reason

    def kill(self, reason: str, now: float, *, final: bool = False) -> None:
        """It is being killed for `reason`; what it reported itself is the better reason."""
        self.killed = True
        self.reason = self.reason or reason
        self._final = self._final or final
        self.deadline, self.overdue = now + FAREWELL_S, f"process {self.pid} survives a kill"

    def stop(self, deadline: float) -> None:
        """It is asked to end by `deadline`; one that waits for its restart has ended. Idempotent."""
        if self.state in ("stopping", "stopped", "failed"):
            return
        if not self.running:
            self._move("stopped")
            self.restart_at, self.detail = None, ""
            return
        self._move("stopping")
        self.deadline, self.overdue, self.detail = deadline, "did not end when asked to", ""

    def abandon(self) -> None:
        """It survives a kill, in a system call that does not return; the stop goes on without it."""
        self._move("failed")
        self.running, self.greeted, self.deadline, self.detail = False, False, None, self.overdue

    def ended(self, exit_reason: str, now: float) -> None:
        """Its process is gone: plan a restart, or give up."""
        reason = self.reason or exit_reason
        self.running, self.greeted, self.deadline = False, False, None
        if self.state == "stopping":
            self._move("stopped")
            return
        self._record = self._record.died(now, self._ready_at)
        if self._final:
            self._move("failed")
            self.detail = reason
        elif self._record.looping:
            self._move("failed")
            self.detail = f"ended {len(self._record.recent)} times within {self.policy.window_s:g} s; last: {reason}"
        else:
            self._move("dead")
            self.detail = reason
            self.restart_at = now + self._record.delay_s

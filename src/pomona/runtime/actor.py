"""What an actor is: a class with a constructor and `run(mailbox)`, which knows nothing of how it was started."""

from typing import Protocol

import msgspec

from pomona.config import Config
from pomona.runtime.control import ActorKind, ActorName
from pomona.runtime.mailbox import Mailbox
from pomona.runtime.wire import Section


class ActorSpec(Section, kw_only=True):
    """All that a placement needs to start an actor; plain data, so it crosses any boundary."""

    name: ActorName
    kind: ActorKind
    target: str
    """`package.module:Class`; the class is called with `(spec, config)`."""
    control: str
    """Endpoint of the supervisor's hub."""
    config: Config
    title: str
    """What `ps` shows."""
    model: str | None = None
    """The id of the model that a worker serves."""
    incarnation: int = 0
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Variables added to the process's environment, such as LD_PRELOAD."""
    inherit: tuple[int, ...] = ()
    """File descriptors that the process inherits under the same numbers: a gateway's listening socket."""


class ActorFailure(Exception):
    """Raised by an actor that cannot serve and will not after a restart; the text names the thing and the mend."""


class Actor(Protocol):
    """Built as `Actor(spec, config)`; it says `mailbox.ready()` once it serves, and ends when `run` returns."""

    def run(self, mailbox: Mailbox) -> None: ...

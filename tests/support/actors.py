"""Tiny actors that behave well or badly on purpose; processes import them as `tests.support.actors:NAME`."""

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path

from pomona.config import Config
from pomona.runtime.actor import ActorFailure, ActorSpec
from pomona.runtime.control import ActorName, Hello, Kill
from pomona.runtime.mailbox import Link, Mailbox, now
from pomona.runtime.wire import PROTOCOL, Decoder, Message

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}
"""What makes this module importable in an actor's process."""

LIFETIME_S = 60.0
"""No actor of a test lives longer, whatever the test forgets."""


class Say(Message):
    text: str


class Quit(Message):
    status: int


class Said(Message):
    text: str
    incarnation: int
    pid: int
    on_main_thread: bool


class Saw(Message):
    """The roster as the actor knows it: `NAME#INCARNATION=STATE` of each actor."""

    roster: tuple[str, ...]


ToParrot = Say | Quit
FromParrot = Said | Saw


def talk_endpoint(config: Config) -> str:
    return f"ipc://{config.runtime_folder}/talk"


def target(actor: type) -> str:
    return f"{__name__}:{actor.__name__}"


class Parrot:
    """Repeats what it hears, tells each roster it sees, exits on request and stops when asked to."""

    def __init__(self, spec: ActorSpec, config: Config) -> None:
        self.spec = spec
        self.config = config

    def run(self, mailbox: Mailbox) -> None:
        talk: Link[ToParrot] = mailbox.link(talk_endpoint(self.config), Decoder(ToParrot))
        mailbox.ready("talking")
        talk.send(Said("ready", self.spec.incarnation, os.getpid(), _on_main_thread()))
        until = now() + LIFETIME_S
        while mailbox.stopping is None and mailbox.wait(until - now()):
            if mailbox.poll_control():
                talk.send(Saw(tuple(f"{a.name}#{a.incarnation}={a.state}" for a in mailbox.roster.actors)))
            for message in talk.drain():
                match message:
                    case Say():
                        talk.send(Said(message.text, self.spec.incarnation, os.getpid(), _on_main_thread()))
                    case Quit():
                        os._exit(message.status)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _until_stopped(mailbox: Mailbox) -> None:
    until = now() + LIFETIME_S
    while mailbox.stopping is None and mailbox.wait(until - now()):
        mailbox.poll_control()


class Quiet:
    """Serves, and stops when asked to."""

    def __init__(self, spec: ActorSpec, config: Config) -> None:
        self.spec = spec

    def run(self, mailbox: Mailbox) -> None:
        mailbox.ready()
        _until_stopped(mailbox)


class Doorman(Quiet):
    """A gateway that answers every connection to the inherited socket with its process number."""

    def run(self, mailbox: Mailbox) -> None:
        with socket.socket(fileno=self.spec.inherit[0]) as listening:
            listening.settimeout(0.05)
            mailbox.ready()
            until = now() + LIFETIME_S
            while mailbox.stopping is None and now() < until:
                mailbox.poll_control()
                with contextlib.suppress(TimeoutError):
                    client, _ = listening.accept()
                    with client:
                        client.sendall(str(os.getpid()).encode())


class Reading(Quiet):
    """Says how many bytes it can read from stdin."""

    def run(self, mailbox: Mailbox) -> None:
        mailbox.ready(f"{len(os.read(0, 1))} bytes")
        _until_stopped(mailbox)


class NeverReady(Quiet):
    def run(self, mailbox: Mailbox) -> None:
        _until_stopped(mailbox)


class SlowToLoad(Quiet):
    """Needs three times as long as its ready deadline, and says what it does meanwhile."""

    def __init__(self, spec: ActorSpec, config: Config) -> None:
        super().__init__(spec, config)
        self.step_s = config.ready_timeout_s / 2

    def run(self, mailbox: Mailbox) -> None:
        for step in range(6):
            mailbox.progress(f"loading part {step}")
            until = now() + self.step_s
            while mailbox.wait(until - now()):
                mailbox.poll_control()
        mailbox.ready()
        _until_stopped(mailbox)


class Stubborn(Quiet):
    """Does not stop when asked to."""

    def run(self, mailbox: Mailbox) -> None:
        mailbox.ready()
        until = now() + LIFETIME_S
        while now() < until:
            mailbox.wait(until - now())
            mailbox.poll_control()


class Unbuildable:
    def __init__(self, spec: ActorSpec, config: Config) -> None:
        raise RuntimeError("the constructor\nraised")


class Misconfigured:
    def __init__(self, spec: ActorSpec, config: Config) -> None:
        raise ActorFailure("the folder is empty; fill it")


class Crashing(Quiet):
    """Is ready, then raises."""

    def run(self, mailbox: Mailbox) -> None:
        mailbox.ready()
        raise ValueError("out of tea")


class Quitting(Quiet):
    """Leaves at once without being asked to, as a killed process would."""

    def run(self, mailbox: Mailbox) -> None:
        sys.exit(3)


class QuittingOnce(Quiet):
    """Its first incarnation leaves at once; the next serves."""

    def run(self, mailbox: Mailbox) -> None:
        if self.spec.incarnation == 0:
            sys.exit(3)
        super().run(mailbox)


class Foreign(Quiet):
    """Comes from another version of Pomona."""

    def run(self, mailbox: Mailbox) -> None:
        mailbox.tell(Hello(ActorName(mailbox.me.name), mailbox.me.incarnation, os.getpid(), PROTOCOL + 1))
        _until_stopped(mailbox)


class Garbling(Quiet):
    """Sends the supervisor bytes that are no message, then serves."""

    def run(self, mailbox: Mailbox) -> None:
        mailbox.control.socket.send(b"\xc1")
        super().run(mailbox)


class Assassin(Quiet):
    """A scheduler that asks for the death of the first incarnation of every worker, again at each roster."""

    def run(self, mailbox: Mailbox) -> None:
        mailbox.ready()
        until = now() + LIFETIME_S
        while mailbox.stopping is None and mailbox.wait(until - now()):
            mailbox.poll_control()
            for actor in mailbox.roster.actors:
                if actor.kind == "worker" and actor.state == "ready":
                    mailbox.kill(Kill(actor.name, 0, "no progress for 7 s"))


class Environment(Parrot):
    """A parrot whose first word is what POMONA_TEST_WORD holds."""

    def run(self, mailbox: Mailbox) -> None:
        talk: Link[ToParrot] = mailbox.link(talk_endpoint(self.config), Decoder(ToParrot))
        word = os.environ.get("POMONA_TEST_WORD", "")
        talk.send(Said(word, self.spec.incarnation, os.getpid(), _on_main_thread()))
        mailbox.ready()
        _until_stopped(mailbox)

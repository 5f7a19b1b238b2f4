"""The body of every actor, however it was placed; as `python -m pomona.runtime.host`, the entry of its process.

The process reads its specification from stdin (four bytes of length, big endian, then MessagePack), and keeps the pipe
as its lifeline: the specification may hold API keys, which belong neither into arguments nor into the environment.
"""

import importlib
import logging
import os
import signal
import struct
import sys

import msgspec
import setproctitle

from pomona.runtime import lifeline, log
from pomona.runtime.actor import Actor, ActorFailure, ActorSpec
from pomona.runtime.mailbox import Mailbox, Peer

FAILED = 70
"""Exit status of an actor that has told the supervisor why it ends."""

logger = logging.getLogger("pomona.runtime.host")  # by name: as a process's entry this module is `__main__`

LENGTH = struct.Struct(">I")


def host(spec: ActorSpec) -> int:
    """Say HELLO, build the actor, run it; returns the exit status: 0, or FAILED once the reason was reported.

    The actor is built and runs on the calling thread, since MLX and event loops are bound to theirs.
    """
    setproctitle.setproctitle(spec.title)
    log.configure(spec.name)
    with Mailbox(Peer(spec.name, spec.incarnation), spec.control) as mailbox:
        mailbox.hello(os.getpid())
        try:
            actor = _build(spec)
            actor.run(mailbox)
        except ActorFailure as failure:
            logger.info("failed reason=%r", str(failure), exc_info=True)
            mailbox.failed(str(failure))
            return FAILED
        except Exception as error:
            logger.exception("ended-by-error")
            mailbox.failed(log.one_line(error), final=False)
            return FAILED
    return 0


def _build(spec: ActorSpec) -> Actor:
    module, _, name = spec.target.partition(":")
    build = getattr(importlib.import_module(module), name)
    actor: Actor = build(spec, spec.config)
    return actor


def pack(spec: ActorSpec) -> bytes:
    """What `main` reads from stdin."""
    body = msgspec.msgpack.encode(spec)
    return LENGTH.pack(len(body)) + body


def _read_exactly(descriptor: int, size: int) -> bytes:
    """Raises EOFError if the other end closes before."""
    chunks: list[bytes] = []
    while size:
        chunk = os.read(descriptor, size)
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def read_spec(descriptor: int) -> ActorSpec:
    """Raises EOFError if the supervisor goes away before it has sent all."""
    (size,) = LENGTH.unpack(_read_exactly(descriptor, LENGTH.size))
    return msgspec.msgpack.decode(_read_exactly(descriptor, size), type=ActorSpec)


def _take_stdin() -> int:
    """The pipe under another number that no child inherits; stdin itself is empty from here on."""
    pipe = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return pipe


def _settle_signals() -> None:
    """A terminal, a service manager or `timeout` may signal the whole group, but the supervisor orders the stop.

    An actor that died of it at once would take the running answers with it.
    """
    signals = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def main() -> int:
    _settle_signals()
    pipe = _take_stdin()
    try:
        spec = read_spec(pipe)
    except EOFError:
        return lifeline.ORPHANED
    lifeline.hold(pipe)
    return host(spec)


if __name__ == "__main__":
    sys.exit(main())

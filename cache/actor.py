"""The cache service as an actor: messages in, answers of `CacheService` out."""

import logging
import time
from pathlib import Path

from pomona.cache.disk import BlockFiles, BlockFolder
from pomona.cache.index import Owner
from pomona.cache.messages import (
    READER,
    WRITER,
    Abort,
    CacheStats,
    CacheToWorker,
    Leased,
    Release,
    Reserved,
    WorkerToCache,
)
from pomona.cache.quarantine import bound
from pomona.cache.service import CacheService
from pomona.config import Config
from pomona.runtime.actor import ActorFailure, ActorSpec
from pomona.runtime.control import ActorStatus, Roster
from pomona.runtime.mailbox import Hub, Mailbox, Peer, now
from pomona.runtime.wire import Decoder, WireError

log = logging.getLogger(__name__)

TICK_S = 5.0


class CacheActor:
    """One for each machine; it never touches the payload of a block."""

    def __init__(
        self, spec: ActorSpec, config: Config, files: BlockFiles | None = None, tick_s: float = TICK_S
    ) -> None:
        """`files` defaults to the folder that the configuration names; housekeeping is done every `tick_s` seconds."""
        if not config.cache_folder:
            raise ActorFailure("no folder for stored KV is configured; set cache.folder")
        quarantine = bound(config.cache.max_bytes)
        self._config = config
        self._tick_s = tick_s
        self._service = CacheService(
            files or BlockFolder(Path(config.cache_folder), quarantine), config.cache, spec.incarnation
        )

    def run(self, mailbox: Mailbox) -> None:
        service = self._service
        mailbox.progress("scanning stored blocks")
        service.open(now())
        hub = mailbox.hub(self._config.cache_endpoint, Decoder[WorkerToCache](WorkerToCache))
        mailbox.ready(service.detail)
        try:
            self._serve(mailbox, hub)
        finally:
            service.close(now())

    def _serve(self, mailbox: Mailbox, hub: Hub[WorkerToCache]) -> None:
        service, next_tick, deadline = self._service, now() + self._tick_s, float("inf")
        while True:
            mailbox.wait(max(0.0, min(next_tick, deadline) - now()))
            if mailbox.poll_control():
                for owner in service.index.owners():
                    if is_gone(owner, mailbox.roster, missing=True):
                        service.end(owner, now())
            self._answer(hub, mailbox.roster)
            if now() >= next_tick:
                service.tick(now(), time.time())
                next_tick = now() + self._tick_s
            if mailbox.stopping is not None:
                deadline = min(deadline, now() + mailbox.stopping.grace_s / 2)
                if service.stop_writes() or now() >= deadline:
                    return

    def _answer(self, hub: Hub[WorkerToCache], roster: Roster) -> None:
        try:
            for peer, message in hub.drain():
                owner = owner_of(peer)
                if is_gone(owner, roster, missing=False):
                    continue  # sent before its death; nobody would give back what this takes
                answer = self._service.handle(owner, message, now())
                if answer is not None and not hub.send(peer, answer):
                    self._take_back(owner, answer)
        except WireError as error:
            log.warning("message-unreadable reason=%r", str(error))

    def _take_back(self, owner: Owner, answer: CacheToWorker) -> None:
        """The peer went away before its answer."""
        match answer:
            case Leased():
                self._service.handle(owner, Release(answer.lease), now())
            case Reserved():
                if answer.path is not None:
                    self._service.handle(owner, Abort(answer.key, "its writer went away"), now())
            case CacheStats():
                pass


def owner_of(peer: Peer) -> Owner:
    """Both links of a worker hold leases for the worker."""
    return Owner(peer.name.removesuffix(READER).removesuffix(WRITER), peer.incarnation)


def is_gone(owner: Owner, roster: Roster, missing: bool) -> bool:
    """True if the roster says that this incarnation has ended; `missing` is the answer for an unlisted name."""
    status: ActorStatus | None = roster.find(owner.name)
    if status is None:
        return missing
    if status.incarnation != owner.incarnation:
        return status.incarnation > owner.incarnation
    return status.state in ("dead", "failed", "stopped")

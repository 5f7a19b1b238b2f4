"""One thread's line to the cache service: questions with a deadline, and answers that may come too late."""

import itertools
import logging
from collections.abc import Callable
from typing import assert_never

import zmq

from pomona.cache.messages import Abort, CacheStats, CacheToWorker, Leased, Release, Reserved, WorkerToCache
from pomona.runtime.mailbox import Link, Peer, now
from pomona.runtime.wire import Decoder, WireError

log = logging.getLogger(__name__)

SILENCE_S = 5.0
"""After an answer that did not come, nothing is asked for so long: a hung service costs one deadline, not one each."""


class Channel:
    """Used by one thread only. Trouble is a missing answer, never an exception."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        me: Peer,
        timeout_s: float,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._me = me
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._inbound: Decoder[CacheToWorker] = Decoder(CacheToWorker)
        self._tickets = itertools.count(1)
        self._link: Link[CacheToWorker] | None = None
        self._incarnation: int | None = None
        self._silent_until = 0.0

    def follow(self, incarnation: int | None) -> None:
        """Talk to this incarnation of the service from now on, over a fresh link; None: to nobody."""
        if incarnation == self._incarnation:
            return
        self.close()
        self._incarnation = incarnation
        self._silent_until = 0.0
        if incarnation is None:
            return
        try:
            self._link = Link(self._context, self._endpoint, self._me, self._inbound)
        except zmq.ZMQError as error:
            log.warning("cache-link-failed peer=%s reason=%r", self._me.name, str(error))

    def tell(self, message: WorkerToCache) -> bool:
        """True if the message is queued for the service."""
        return self._link is not None and self._link.send(message)

    def ask(self, question: Callable[[int], WorkerToCache]) -> CacheToWorker | None:
        """The answer to `question(ticket)`, or None if the service is away or does not answer in time."""
        deadline = now() + self._timeout_s
        ticket = next(self._tickets)
        if self._link is None or now() < self._silent_until or not self._link.send(question(ticket)):
            return None
        while True:
            try:
                answer = self._link.receive(deadline - now())
            except WireError as error:
                log.warning("cache-answer-unreadable peer=%s reason=%r", self._me.name, str(error))
                return None
            if answer is None:
                self._silent_until = now() + self._silence_s
                log.warning("cache-silent peer=%s waited_s=%g", self._me.name, self._timeout_s)
                return None
            if answer.ticket == ticket:
                return answer
            self._give_back(answer)

    def _give_back(self, late: CacheToWorker) -> None:
        """An answer that nobody waits for any more may hold a lease or a reservation."""
        match late:
            case Leased():
                if late.blocks:
                    self.tell(Release(late.lease))
            case Reserved():
                if late.path is not None:
                    self.tell(Abort(late.key, "granted too late"))
            case CacheStats():
                pass
            case _:
                assert_never(late)

    def close(self, linger_s: float = 0.0) -> None:
        """What was told last gets `linger_s` seconds to leave."""
        if self._link is not None:
            self._link.socket.setsockopt(zmq.LINGER, round(linger_s * 1000))
            self._link.close()
            self._link = None

"""The gateway's end of the scheduler: submits requests, and replays them when the scheduler was restarted."""

import asyncio
import itertools
import logging
from typing import assert_never

from pomona.runtime.control import Roster
from pomona.runtime.mailbox import AsyncLink, AsyncMailbox
from pomona.runtime.wire import Decoder, replace
from pomona.scheduler.messages import (
    AskStats,
    Cancelled,
    CancelRequest,
    Events,
    GatewayHello,
    GatewayToScheduler,
    Models,
    ModelState,
    Progressed,
    Refused,
    SchedulerToGateway,
    Stats,
    Submit,
)
from pomona.scheduler.sequence import place
from pomona.scheduler.stream import Rejected, TokenStream
from pomona.workers.messages import Request, RequestId, TokenEvent

__all__ = ["Rejected", "SchedulerClient", "TokenStream"]

SCHEDULER = "scheduler"
MAX_MENDS = 3
"""Broken sequences that one request survives; then it is rejected."""

logger = logging.getLogger(__name__)


class _Live:
    """A request that has not ended, with what a resubmission needs."""

    def __init__(self, stream: TokenStream) -> None:
        self.stream = stream
        self.sent = False
        self.mends = 0
        self.mending = False
        """Its sequence broke: its run is being cancelled, to be submitted again from what was seen."""
        self.patience: asyncio.TimerHandle | None = None
        """Ends it if the scheduler stays away."""

    def disarm(self) -> None:
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None


class SchedulerClient:
    """Lives on the gateway's event loop. It remembers every live request with the tokens it has seen.

    So the scheduler may be killed at any time: once the roster shows its next incarnation ready, the client opens a
    fresh link, says hello and submits again, each request with its committed tokens. Nothing is lost or doubled.
    """

    def __init__(self, mailbox: AsyncMailbox, endpoint: str, *, patience_s: float = 30.0) -> None:
        """`patience_s`: seconds that a request waits while no scheduler answers, before it is `unavailable`."""
        self.models: tuple[ModelState, ...] = ()
        self.connected = False
        """The scheduler answered on the current link."""
        self._mailbox = mailbox
        self._endpoint = endpoint
        self._patience_s = patience_s
        self._incarnation: int | None = None
        self._outbox: asyncio.Queue[GatewayToScheduler] | None = None
        """What waits to leave on the current link; None while there is no scheduler to link to."""
        self._serving: asyncio.Task[None] | None = None
        """The task of the latest link; only `run` replaces it, so that it is never left behind unfinished."""
        self._entered = asyncio.Event()
        self._live: dict[RequestId, _Live] = {}
        self._tickets = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Stats]] = {}

    async def run(self) -> None:
        """Serve the links, one incarnation of the scheduler after the other, until cancelled."""
        try:
            while True:
                await self._entered.wait()
                self._entered.clear()
                if self._outbox is None:
                    continue
                self._serving = asyncio.create_task(self._serve(self._outbox))
                await asyncio.wait({self._serving})
                if not self._serving.cancelled():
                    self._serving.result()
        finally:
            self._hang_up()
            if self._serving is not None:
                await asyncio.wait({self._serving})

    async def on_roster(self, roster: Roster) -> None:
        """Follow the scheduler: leave the link of a dead one, open a fresh link to a new one that is ready."""
        status = roster.find(SCHEDULER)
        if status is None or status.state in ("stopped", "dead", "failed") or status.incarnation != self._incarnation:
            self._leave()
        if status is not None and status.state == "ready" and self._outbox is None:
            self._enter(status.incarnation)

    def submit(self, request: Request) -> TokenStream:
        """Run a request; its id was never used before. While the scheduler is away it waits for `patience_s`."""
        stream = TokenStream(request, self._cancel)
        live = self._live[request.id] = _Live(stream)
        self._submit(live)
        if not self.connected:
            self._arm(live)
        return stream

    async def cancel(self, id: RequestId) -> None:
        """Stop a request, whatever its state; its stream ends now. Idempotent, and legal for unknown ids."""
        self._cancel(id)

    async def stats(self, timeout_s: float) -> Stats:
        """The scheduler's counters; raises TimeoutError if it does not answer within `timeout_s` seconds."""
        ticket = next(self._tickets)
        answer = self._asked[ticket] = asyncio.get_running_loop().create_future()
        self._send(AskStats(ticket))
        try:
            return await asyncio.wait_for(answer, timeout_s)
        finally:
            del self._asked[ticket]

    def _cancel(self, id: RequestId) -> None:
        live = self._live.get(id)
        if live is not None:
            self._end(live)
            self._send(CancelRequest(id))

    def _enter(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._outbox = asyncio.Queue()
        self._send(GatewayHello())
        for live in self._live.values():
            live.mending = False
            self._submit(live)
        for ticket in self._asked:
            self._send(AskStats(ticket))
        self._entered.set()
        logger.info("scheduler-entered incarnation=%d resubmitted=%d", incarnation, len(self._live))

    def _leave(self) -> None:
        self.connected = False
        self._hang_up()
        for live in self._live.values():
            self._arm(live)

    def _hang_up(self) -> None:
        self._outbox = None
        if self._serving is not None and not self._serving.cancelling():
            self._serving.cancel()

    def _arm(self, live: _Live) -> None:
        if live.patience is None:
            loop = asyncio.get_running_loop()
            live.patience = loop.call_later(self._patience_s, self._give_up, live)

    def _give_up(self, live: _Live) -> None:
        reason = f"the scheduler has not answered for {self._patience_s:g} s; send the request again later"
        self._end(live, Rejected("unavailable", reason, retry_after_s=max(1, round(self._patience_s))))
        self._send(CancelRequest(live.stream.id))

    def _submit(self, live: _Live) -> None:
        if self._outbox is not None:
            request = replace(live.stream.request, committed=tuple(live.stream.committed))
            self._send(Submit(request, resumed=live.sent))
            live.sent = True

    def _send(self, message: GatewayToScheduler) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    def _end(self, live: _Live, why: Rejected | None = None) -> None:
        live.disarm()
        live.stream.end(why)
        self._live.pop(live.stream.id, None)

    async def _serve(self, outbox: "asyncio.Queue[GatewayToScheduler]") -> None:
        """One link: what a dead scheduler did not get must not reach the next, so each has its own."""
        link: AsyncLink[SchedulerToGateway] = self._mailbox.link(self._endpoint, Decoder(SchedulerToGateway))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_write(link, outbox))
                while True:
                    self._receive(await link.receive())
        finally:
            link.close()

    def _receive(self, message: SchedulerToGateway) -> None:
        match message:
            case Models():
                self._greeted(message)
            case Events() if self.connected:
                for event in message.events:
                    self._take(event)
            case Events():
                pass  # of a run from before our hello, which ended it
            case Progressed():
                for id, prefilled in message.prefilled.items():
                    if (live := self._live.get(id)) is not None:
                        live.stream.prefilled = prefilled
            case Refused():
                if (live := self._live.get(message.id)) is not None:
                    self._end(live, Rejected(message.kind, message.message, message.retry_after_s))
            case Cancelled():
                self._cancelled(message.id)
            case Stats():
                answer = self._asked.get(message.ticket)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case _:
                assert_never(message)

    def _greeted(self, message: Models) -> None:
        self.models = message.models
        if not self.connected:
            self.connected = True
            for live in self._live.values():
                live.disarm()

    def _take(self, event: TokenEvent) -> None:
        live = self._live.get(event.id)
        if live is None or live.mending:
            return
        stream = live.stream
        match place(event, len(stream.committed)):
            case "next":
                stream.push(event)
                if stream.ended:
                    self._end(live)
            case "seen":
                pass
            case "broken":
                self._mend(live, event)

    def _mend(self, live: _Live, event: TokenEvent) -> None:
        """End the run whose events do not join what was seen; its `Cancelled` tells that no event of it follows."""
        live.mends += 1
        live.mending = True
        seen = len(live.stream.committed)
        logger.error("token-sequence-broken id=%s seen=%d position=%d", event.id, seen, event.position)
        self._send(CancelRequest(event.id))
        if live.mends > MAX_MENDS:
            reason = f"the token stream broke {live.mends} times at token {seen}; report it with the server's log"
            self._end(live, Rejected("unavailable", reason))

    def _cancelled(self, id: RequestId) -> None:
        live = self._live.get(id)
        if live is None:
            return
        if live.mending:
            live.mending = False
            self._submit(live)
        else:
            self._end(live, Rejected("unavailable", "the scheduler ended the request; send it again"))


async def _write(link: AsyncLink[SchedulerToGateway], outbox: "asyncio.Queue[GatewayToScheduler]") -> None:
    while True:
        await link.send(await outbox.get())

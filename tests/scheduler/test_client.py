"""The client against a scheduler that the test plays, message by message."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator

import pytest
import zmq

from pomona.runtime.control import ActorName, ActorState, ActorStatus, Roster
from pomona.runtime.mailbox import AsyncMailbox, Hub, Mailbox, Peer
from pomona.runtime.wire import Decoder, Message, replace
from pomona.scheduler.client import MAX_MENDS, Rejected, SchedulerClient, TokenStream
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
    Stats,
    Submit,
)
from pomona.workers.messages import RequestId
from tests.scheduler.harness import until
from tests.scheduler.rows import answer, event, request

GATEWAY = Peer("gateway", 0)
A = RequestId("a")
MODELS = Models((ModelState(id="m", state="ready", context=9, workers=1),))


class Stage:
    """One client, and the hub of whatever scheduler incarnation the test plays."""

    def __init__(self, patience_s: float) -> None:
        self.folder = tempfile.mkdtemp(prefix="pm-")
        self.endpoint = f"ipc://{self.folder}/scheduler"
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.hub = self._bind()
        self.heard: list[GatewayToScheduler] = []
        self.mailbox = Mailbox(GATEWAY, f"ipc://{self.folder}/control")
        self.client = SchedulerClient(AsyncMailbox(self.mailbox), self.endpoint, patience_s=patience_s)
        self.running = asyncio.create_task(self.client.run())

    def _bind(self) -> Hub[GatewayToScheduler]:
        return Hub(self.context, self.endpoint, Decoder(GatewayToScheduler))

    async def roster(self, incarnation: int, state: ActorState = "ready") -> None:
        await self.client.on_roster(Roster((ActorStatus(ActorName("scheduler"), "scheduler", incarnation, state),)))

    async def enter(self, incarnation: int = 0) -> None:
        """The scheduler is ready, and greets the client."""
        await self.roster(incarnation)
        await self.hears(GatewayHello())
        self.say(MODELS)
        await until(lambda: self.client.connected)

    def rebind(self) -> None:
        """The scheduler's next incarnation."""
        self.hub.close()
        self.hub = self._bind()

    def say(self, message: Message) -> None:
        assert self.hub.send(GATEWAY, message)

    def listen(self) -> list[GatewayToScheduler]:
        self.heard.extend(message for _, message in self.hub.drain())
        return self.heard

    async def hears(self, *messages: GatewayToScheduler) -> None:
        """These messages come next."""
        await until(lambda: len(self.listen()) >= len(messages))
        taken, self.heard = self.heard[: len(messages)], self.heard[len(messages) :]
        assert taken == list(messages)

    async def close_client(self) -> None:
        """Waits for every socket of the client to be closed."""
        self.running.cancel()
        await asyncio.wait({self.running})
        if not self.mailbox.context.closed:
            self.mailbox.close(linger_s=0)

    async def close(self) -> None:
        await self.close_client()
        self.hub.close()
        self.context.term()
        shutil.rmtree(self.folder)
        if not self.running.cancelled():
            self.running.result()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage(patience_s=30)
    yield stage
    await stage.close()


@pytest.fixture
async def hasty() -> AsyncIterator[Stage]:
    stage = Stage(patience_s=0.05)
    yield stage
    await stage.close()


async def tokens(stream: TokenStream) -> list[int]:
    async with asyncio.timeout(20):
        return [token async for event in stream for token in event.tokens]


async def test_a_link_begins_with_hello_and_is_connected_by_the_answer(stage: Stage) -> None:
    await stage.roster(0)
    await stage.hears(GatewayHello())
    assert not stage.client.connected
    stage.say(MODELS)
    await until(lambda: stage.client.connected)
    assert stage.client.models == MODELS.models


async def test_a_scheduler_that_is_not_ready_is_not_spoken_to(stage: Stage) -> None:
    await stage.roster(0, "starting")
    stage.client.submit(request("a"))
    await stage.roster(0)
    await stage.hears(GatewayHello(), Submit(request("a")))


async def test_the_same_roster_again_changes_nothing(stage: Stage) -> None:
    await stage.enter()
    await stage.roster(0)
    await stage.roster(0, "stopping")
    assert stage.client.connected
    stage.client.submit(request("a"))
    await stage.hears(Submit(request("a")))


async def test_what_was_delivered_already_is_dropped(stage: Stage) -> None:
    await stage.enter()
    wanted = request("a", max_tokens=6)
    stream = stage.client.submit(wanted)
    await stage.hears(Submit(wanted))
    first, second, last = event(wanted, 0, 2), event(wanted, 2, 2), event(wanted, 4, 2)
    stage.say(Events((first, second, first, second)))
    stage.say(Events((second, last)))
    assert await tokens(stream) == answer(wanted)


@pytest.mark.parametrize("position", [1, 4], ids=["overlap", "gap"])
async def test_a_broken_sequence_is_resumed_from_what_was_seen(stage: Stage, position: int) -> None:
    await stage.enter()
    wanted = request("a", max_tokens=8)
    stream = stage.client.submit(wanted)
    await stage.hears(Submit(wanted))
    stage.say(Events((event(wanted, 0, 2), event(wanted, position, 2), event(wanted, 6, 1))))
    await stage.hears(CancelRequest(A))
    stage.say(Events((event(wanted, 2, 2),)))  # of the run that is being cancelled
    stage.say(Cancelled(A))
    seen = tuple(answer(wanted)[:2])
    await stage.hears(Submit(replace(wanted, committed=seen), resumed=True))
    stage.say(Events((event(wanted, 2, 6),)))
    assert await tokens(stream) == answer(wanted)


async def test_a_sequence_that_breaks_again_and_again_is_given_up(stage: Stage) -> None:
    await stage.enter()
    stream = stage.client.submit(request("a"))
    await stage.hears(Submit(request("a")))
    for _ in range(MAX_MENDS):
        stage.say(Events((event(request("a"), 3, 1),)))
        await stage.hears(CancelRequest(A))
        stage.say(Cancelled(A))
        await stage.hears(Submit(request("a"), resumed=True))
    stage.say(Events((event(request("a"), 3, 1),)))
    with pytest.raises(Rejected, match="broke 4 times"):
        await tokens(stream)
    await stage.hears(CancelRequest(A))


async def test_live_requests_are_submitted_again_to_a_new_incarnation_with_what_was_seen(stage: Stage) -> None:
    await stage.enter()
    ended, half, fresh, dropped = (request(id, max_tokens=4) for id in ("ended", "half", "fresh", "dropped"))
    streams = [stage.client.submit(wanted) for wanted in (ended, half, fresh, dropped)]
    await stage.client.cancel(dropped.id)
    await stage.hears(*map(Submit, (ended, half, fresh, dropped)), CancelRequest(dropped.id))
    stage.say(Events((event(ended, 0, 4), event(half, 0, 3))))
    assert await tokens(streams[0]) == answer(ended)
    first = await anext(streams[1])
    await stage.roster(0, "dead")
    assert not stage.client.connected
    stage.rebind()
    late = request("late")
    stage.client.submit(late)
    await stage.roster(1)
    seen = tuple(answer(half)[:3])
    await stage.hears(
        GatewayHello(),
        Submit(replace(half, committed=seen), resumed=True),
        Submit(fresh, resumed=True),
        Submit(late),
    )
    stage.say(Events((event(half, 0, 1),)))  # from before the hello was heard
    stage.say(MODELS)
    stage.say(Events((event(half, 3, 1),)))
    assert [*first.tokens, *await tokens(streams[1])] == answer(half)
    assert await tokens(streams[3]) == []


async def test_a_new_incarnation_is_followed_even_if_the_death_was_never_told(stage: Stage) -> None:
    await stage.enter()
    stage.client.submit(request("a"))
    await stage.hears(Submit(request("a")))
    stage.rebind()
    await stage.roster(1, "starting")
    assert not stage.client.connected
    await stage.roster(1)
    await stage.hears(GatewayHello(), Submit(request("a"), resumed=True))


async def test_events_before_the_answer_to_hello_are_of_a_former_run(stage: Stage) -> None:
    await stage.roster(0)
    wanted = request("a", max_tokens=2)
    stream = stage.client.submit(wanted)
    await stage.hears(GatewayHello(), Submit(wanted))
    stage.say(Events((event(wanted, 1, 1),)))
    stage.say(MODELS)
    stage.say(Events((event(wanted, 0, 2),)))
    assert await tokens(stream) == answer(wanted)
    assert stage.listen() == []


async def test_a_scheduler_that_stays_away_makes_requests_unavailable(hasty: Stage) -> None:
    with pytest.raises(Rejected, match="has not answered") as rejected:
        await tokens(hasty.client.submit(request("a")))
    assert rejected.value.kind == "unavailable"
    await hasty.enter()
    stream = hasty.client.submit(request("b"))
    await hasty.hears(Submit(request("b")))
    await hasty.roster(0, "dead")
    with pytest.raises(Rejected, match="has not answered"):
        await tokens(stream)


async def test_a_request_that_was_given_up_is_cancelled_in_case_it_arrived(hasty: Stage) -> None:
    await hasty.roster(0)
    with pytest.raises(Rejected, match="has not answered"):
        await tokens(hasty.client.submit(request("a")))
    await hasty.hears(GatewayHello(), Submit(request("a")), CancelRequest(A))


async def test_an_answering_scheduler_may_take_its_time(hasty: Stage) -> None:
    await hasty.roster(0)
    stream = hasty.client.submit(request("a", max_tokens=1))
    await hasty.hears(GatewayHello(), Submit(request("a", max_tokens=1)))
    hasty.say(MODELS)
    await until(lambda: hasty.client.connected)
    with pytest.raises(TimeoutError):
        await hasty.client.stats(0.2)  # four times the patience
    hasty.say(Events((event(stream.request, 0, 1),)))
    assert await tokens(stream) == answer(stream.request)


async def test_a_refusal_is_raised_once_and_then_the_stream_is_over(stage: Stage) -> None:
    await stage.enter()
    stream = stage.client.submit(request("a"))
    stage.say(Refused(A, "queue_full", "full", 7))
    with pytest.raises(Rejected, match="full") as rejected:
        await anext(stream)
    assert (rejected.value.kind, rejected.value.message, rejected.value.retry_after_s) == ("queue_full", "full", 7)
    assert await tokens(stream) == []


async def test_leaving_the_context_cancels_what_still_runs(stage: Stage) -> None:
    await stage.enter()
    with pytest.raises(ZeroDivisionError):
        async with stage.client.submit(request("a")) as stream:
            raise ZeroDivisionError
    await stage.hears(Submit(request("a")), CancelRequest(A))
    stage.say(Events((event(request("a"), 0, 1),)))
    stage.say(Cancelled(A))
    assert await tokens(stream) == []


async def test_leaving_the_context_after_the_end_says_nothing(stage: Stage) -> None:
    await stage.enter()
    wanted = request("a", max_tokens=1)
    async with stage.client.submit(wanted) as stream:
        stage.say(Events((event(wanted, 0, 1),)))
        assert await tokens(stream) == answer(wanted)
    await stage.hears(Submit(wanted))
    with pytest.raises(TimeoutError):
        await stage.client.stats(0)
    await stage.hears(AskStats(1))


async def test_a_cancel_that_nobody_asked_for_ends_the_stream_with_an_error(stage: Stage) -> None:
    await stage.enter()
    stream = stage.client.submit(request("a"))
    stage.say(Cancelled(A))
    with pytest.raises(Rejected, match="scheduler ended"):
        await tokens(stream)


async def test_progress_of_unknown_requests_is_ignored(stage: Stage) -> None:
    await stage.enter()
    stream = stage.client.submit(request("a"))
    stage.say(Progressed({A: 3, RequestId("gone"): 9}))
    await until(lambda: stream.prefilled == 3)


async def test_stats_are_matched_to_who_asked_and_asked_again_of_a_new_scheduler(stage: Stage) -> None:
    await stage.enter()
    first = asyncio.create_task(stage.client.stats(10))
    second = asyncio.create_task(stage.client.stats(10))
    await stage.hears(AskStats(1), AskStats(2))
    stats = Stats(2, 1, 2, 3, 4, 5, {}, 6, 7, ())
    stage.say(stats)
    assert await second == stats
    stage.rebind()
    await stage.roster(1)
    await stage.hears(GatewayHello(), AskStats(1))
    stage.say(replace(stats, ticket=1))
    assert (await first).ticket == 1


async def test_stats_without_an_answer_time_out(stage: Stage) -> None:
    with pytest.raises(TimeoutError):
        await stage.client.stats(0.01)


async def test_a_client_that_ends_as_the_scheduler_dies_leaves_no_link_open(stage: Stage) -> None:
    await stage.enter()
    await stage.roster(0, "dead")
    await stage.close_client()


async def test_a_client_that_never_ran_has_no_link_open(stage: Stage) -> None:
    mailbox = Mailbox(Peer("gateway:1", 0), f"ipc://{stage.folder}/control")
    client = SchedulerClient(AsyncMailbox(mailbox), stage.endpoint)
    await client.on_roster(Roster((ActorStatus(ActorName("scheduler"), "scheduler", 0, "ready"),)))
    mailbox.close(linger_s=0)
    assert not client.connected

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pomona.cache.channel import Channel
from pomona.cache.messages import (
    Abort,
    AskCacheStats,
    BlockKey,
    Leased,
    LeaseId,
    Lookup,
    Release,
    Reserve,
    Reserved,
    StoredBlock,
    WorkerToCache,
)
from pomona.runtime.mailbox import Hub, Peer
from pomona.runtime.wire import Decoder
from tests.cache.house import DEADLINE_S, until

ME = Peer("worker:m@reader", 1)
KEY = BlockKey(b"k" * 32)


class Desk:
    """Channels of the worker, and the other end in the test's own hands."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.endpoint = f"ipc://{folder}/cache"
        self._opened: list[Channel | Hub[WorkerToCache]] = []
        self.hub: Hub[WorkerToCache]

    def open(self) -> None:
        self.hub = Hub(self.context, self.endpoint, Decoder(WorkerToCache))
        self._opened.append(self.hub)

    def channel(self, timeout_s: float, endpoint: str | None = None) -> Channel:
        channel = Channel(self.context, endpoint or self.endpoint, ME, timeout_s, 0.0)
        channel.follow(1)
        self._opened.append(channel)
        return channel

    def hear(self) -> WorkerToCache:
        assert self.hub.socket.poll(round(1000 * DEADLINE_S))
        return next(message for _, message in self.hub.drain())

    def close(self) -> None:
        for one in self._opened:
            one.close()
        self.context.term()


@pytest.fixture
def desk(short_folder: Path) -> Iterator[Desk]:
    desk = Desk(short_folder)
    yield desk
    desk.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The path of a socket has about a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="pomona-") as folder:
        yield Path(folder)


def test_what_is_granted_too_late_is_given_back(desk: Desk) -> None:
    desk.open()
    line = desk.channel(0.01)
    assert line.ask(lambda ticket: Lookup(ticket, (KEY,))) is None
    assert line.ask(lambda ticket: Reserve(ticket, KEY, KEY, 10)) is None
    lookup, reserve = desk.hear(), desk.hear()
    assert isinstance(lookup, Lookup)
    assert isinstance(reserve, Reserve)
    desk.hub.send(ME, Leased(lookup.ticket, LeaseId(5), (StoredBlock(KEY, "/a"),)))
    desk.hub.send(ME, Reserved(reserve.ticket, "/b", key=KEY))
    until(lambda: bool(line._link and line._link.socket.poll(0)), "the late answers")
    assert line.ask(AskCacheStats) is None
    assert isinstance(desk.hear(), AskCacheStats)
    assert desk.hear() == Release(LeaseId(5))
    assert desk.hear() == Abort(KEY, "granted too late")


def test_nothing_is_given_back_of_what_holds_nothing(desk: Desk) -> None:
    desk.open()
    line = desk.channel(0.01)
    assert line.ask(lambda ticket: Lookup(ticket, (KEY,))) is None
    asked = desk.hear()
    assert isinstance(asked, Lookup)
    desk.hub.send(ME, Leased(asked.ticket, LeaseId(0), ()))
    desk.hub.send(ME, Reserved(asked.ticket, None, "full", key=KEY))
    until(lambda: bool(line._link and line._link.socket.poll(0)), "the late answers")
    assert line.ask(AskCacheStats) is None
    assert isinstance(desk.hear(), AskCacheStats)
    assert line.tell(Release(LeaseId(1)))
    assert desk.hear() == Release(LeaseId(1))


def test_an_answer_that_cannot_be_read_is_a_missing_answer(desk: Desk) -> None:
    desk.open()
    line = desk.channel(DEADLINE_S)
    assert line.tell(Release(LeaseId(1)))
    desk.hear()
    desk.hub.socket.send_multipart([ME.identity, b"\xc1"])
    assert line.ask(AskCacheStats) is None


def test_a_channel_that_follows_nobody_asks_nobody(desk: Desk) -> None:
    desk.open()
    line = desk.channel(DEADLINE_S)
    line.follow(None)
    assert line.ask(AskCacheStats) is None
    assert not line.tell(Release(LeaseId(1)))
    assert not desk.hub.socket.poll(0)


def test_an_endpoint_that_cannot_be_reached_is_no_exception(desk: Desk) -> None:
    line = desk.channel(0.01, f"ipc:///{'long' * 50}")
    assert line.ask(AskCacheStats) is None


def test_a_new_incarnation_hears_nothing_that_was_meant_for_the_old(desk: Desk) -> None:
    line = desk.channel(0.01)
    assert line.tell(Release(LeaseId(1))), "queued for a hub that never comes up"
    line.follow(2)
    desk.open()
    assert line.tell(Release(LeaseId(2)))
    assert desk.hear() == Release(LeaseId(2))

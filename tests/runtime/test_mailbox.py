import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pomona.runtime.control import (
    ActorName,
    ActorStatus,
    ActorToSupervisor,
    Failed,
    Hello,
    Kill,
    Progress,
    Ready,
    Roster,
    Stop,
)
from pomona.runtime.mailbox import HIGH_WATER_MARK, AsyncMailbox, Hub, Link, Mailbox, Peer, Reception, now
from pomona.runtime.wire import PROTOCOL, Decoder, WireError, encode
from tests.support.actors import FromParrot, Quit, Said, Say, ToParrot

LIMIT_S = 10.0
ME = Peer("worker:a", 2)
TO_PARROT: Decoder[ToParrot] = Decoder(ToParrot)
FROM_PARROT: Decoder[FromParrot] = Decoder(FromParrot)
HELLO = Said("hello", 0, 1, True)


class Ends:
    """Hubs and links that are closed with the test."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._open: list[Hub[FromParrot] | Link[ToParrot]] = []

    def hub(self, endpoint: str, high_water_mark: int = HIGH_WATER_MARK) -> Hub[FromParrot]:
        hub: Hub[FromParrot] = Hub(self.context, endpoint, FROM_PARROT, high_water_mark)
        self._open.append(hub)
        return hub

    def link(self, endpoint: str, high_water_mark: int = HIGH_WATER_MARK) -> Link[ToParrot]:
        link: Link[ToParrot] = Link(self.context, endpoint, ME, TO_PARROT, high_water_mark)
        self._open.append(link)
        return link

    def close(self) -> None:
        for end in self._open:
            end.close()
        self.context.term()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/hub"


def hear(hub: Hub[FromParrot]) -> tuple[Peer, FromParrot]:
    assert hub.socket.poll(LIMIT_S * 1000), "nothing arrived"
    return next(hub.drain())


def test_a_peer_is_its_name_and_its_incarnation() -> None:
    assert Peer.parse(Peer("worker:a#b", 12).identity) == Peer("worker:a#b", 12)
    with pytest.raises(WireError, match="NAME#INCARNATION"):
        Peer.parse(b"worker")


def test_what_a_hub_sends_to_an_unknown_peer_is_refused_and_not_dropped(ends: Ends, endpoint: str) -> None:
    hub = ends.hub(endpoint)
    assert hub.send(Peer("nobody", 0), Say("anybody there?")) is False


def test_what_a_hub_sends_to_a_peer_that_stopped_reading_is_refused_in_the_end(ends: Ends, endpoint: str) -> None:
    hub = ends.hub(endpoint, high_water_mark=10)
    link = ends.link(endpoint, high_water_mark=10)
    link.send(HELLO)
    hear(hub)
    heavy = Say("x" * 100_000)
    sent = 0
    while hub.send(ME, heavy):
        sent += 1
        assert sent < 1_000
    received = 0
    while link.receive(LIMIT_S) == heavy:
        received += 1
        if received == sent:
            break
    assert received == sent, "what was not refused arrives"


def test_what_a_link_cannot_queue_any_more_is_refused(ends: Ends, endpoint: str) -> None:
    link = ends.link(endpoint, high_water_mark=3)
    assert [link.send(HELLO) for _ in range(5)] == [True, True, True, False, False]


def test_a_hub_and_a_link_exchange_messages(ends: Ends, endpoint: str) -> None:
    hub = ends.hub(endpoint)
    link = ends.link(endpoint)
    assert link.receive(0.0) is None
    assert link.send(HELLO)
    assert hear(hub) == (ME, HELLO)
    assert list(hub.drain()) == []
    assert hub.send(ME, Say("one"))
    assert hub.send(ME, Quit(2))
    assert link.receive(LIMIT_S) == Say("one")
    assert link.receive(LIMIT_S) == Quit(2)
    assert list(link.drain()) == []


def test_a_peer_that_comes_back_under_a_used_identity_takes_it_over(ends: Ends, endpoint: str) -> None:
    hub = ends.hub(endpoint)
    first = ends.link(endpoint)
    first.send(HELLO)
    hear(hub)
    second = ends.link(endpoint)
    second.send(Said("me again", 0, 2, True))
    assert hear(hub) == (ME, Said("me again", 0, 2, True))
    assert hub.send(ME, Say("to the newcomer"))
    assert second.receive(LIMIT_S) == Say("to the newcomer")
    assert first.receive(0.0) is None


def test_a_link_opened_anew_brings_no_stale_message_to_the_next_hub(ends: Ends, endpoint: str) -> None:
    with Mailbox(ME, "inproc://control") as mailbox:
        old: Link[ToParrot] = mailbox.link(endpoint, TO_PARROT)
        assert old.send(Said("meant for the hub that died", 0, 1, True)), "queued, since no hub is there"
        mailbox.drop(old)
        new: Link[ToParrot] = mailbox.link(endpoint, TO_PARROT)
        new.send(HELLO)
        hub = ends.hub(endpoint)
        assert hear(hub) == (ME, HELLO)
        assert hub.send(ME, Say("welcome"))
        assert new.receive(LIMIT_S) == Say("welcome")
        assert list(hub.drain()) == []
        assert not mailbox.wait(0.0), "what was dropped is not waited for"


def test_a_socket_file_that_a_killed_process_left_is_replaced(ends: Ends, endpoint: str) -> None:
    Path(endpoint.removeprefix("ipc://")).touch()
    hub = ends.hub(endpoint)
    link = ends.link(endpoint)
    link.send(HELLO)
    assert hear(hub) == (ME, HELLO)


def test_a_message_that_cannot_be_read_does_not_hide_the_next(ends: Ends, endpoint: str) -> None:
    hub = ends.hub(endpoint)
    link = ends.link(endpoint)
    link.socket.send(b"\xc1")
    link.socket.send_multipart([b"two", b"frames"])
    link.send(HELLO)
    for _ in range(2):
        assert hub.socket.poll(LIMIT_S * 1000)
        with pytest.raises(WireError):
            next(hub.drain())
    assert hear(hub) == (ME, HELLO)


@pytest.mark.parametrize("open_to_all", ["tcp://*:0", "tcp://0.0.0.0:*", "tcp://192.168.1.2:9000", "tcp://[::]:*"])
def test_a_hub_without_keys_listens_on_loopback_only(ends: Ends, open_to_all: str) -> None:
    with pytest.raises(ValueError, match="loopback only"):
        ends.hub(open_to_all)


def test_a_hub_on_tcp_says_which_port_it_got(ends: Ends) -> None:
    hub = ends.hub("tcp://127.0.0.1:*")
    link = ends.link(hub.endpoint)
    link.send(HELLO)
    assert hear(hub) == (ME, HELLO)


class Desk:
    """The supervisor's end of a mailbox under test."""

    def __init__(self, tmp_path: Path) -> None:
        self.reception: Reception[ActorToSupervisor, str] = Reception(
            f"ipc://{tmp_path}/control", Decoder(ActorToSupervisor)
        )
        self.mailbox = Mailbox(ME, self.reception.hub.endpoint)

    def hear(self) -> ActorToSupervisor:
        assert self.reception.wait_hub(LIMIT_S), "nothing arrived"
        peer, message = next(self.reception.hub.drain())
        assert peer == ME
        return message


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.mailbox.close()
    desk.reception.close()


def test_what_an_actor_built_before_it_is_ready_is_no_garbage(desk: Desk) -> None:
    before = gc.get_freeze_count()
    built = [[] for _ in range(5000)]  # type: ignore[var-annotated]
    try:
        desk.mailbox.ready()
        assert gc.get_freeze_count() >= before + len(built)
    finally:
        gc.unfreeze()


def test_an_actor_tells_the_supervisor_how_it_is(desk: Desk) -> None:
    kill = Kill(ActorName("worker:b"), 3, "no progress")
    desk.mailbox.hello(77)
    desk.mailbox.progress("loading")
    desk.mailbox.ready("up")
    desk.mailbox.failed("no more tea; buy some")
    desk.mailbox.failed("KeyError: 3", final=False)
    desk.mailbox.kill(kill)
    assert [desk.hear() for _ in range(6)] == [
        Hello(ActorName("worker:a"), 2, 77, PROTOCOL),
        Progress("loading"),
        Ready("up"),
        Failed("no more tea; buy some", True),
        Failed("KeyError: 3", False),
        kill,
    ]


def test_a_mailbox_keeps_the_latest_roster_and_the_order_to_stop(desk: Desk) -> None:
    desk.mailbox.hello(77)
    desk.hear()
    assert not desk.mailbox.poll_control()
    scheduler = ActorStatus(ActorName("scheduler"), "scheduler", 0, "ready")
    desk.reception.hub.send(ME, Roster(()))
    desk.reception.hub.send(ME, Roster((scheduler,)))
    desk.reception.hub.send(ME, Stop(2.5))
    changed = False
    until = now() + LIMIT_S
    while desk.mailbox.stopping is None:
        assert desk.mailbox.wait(until - now())
        changed = desk.mailbox.poll_control() or changed
    assert changed
    assert desk.mailbox.roster.find("scheduler") == scheduler
    assert desk.mailbox.roster.find("cache") is None
    assert desk.mailbox.stopping == Stop(2.5)


def test_waiting_ends_when_any_socket_can_be_read_and_after_the_time_given(
    desk: Desk, ends: Ends, tmp_path: Path
) -> None:
    hub: Hub[FromParrot] = desk.mailbox.hub(f"ipc://{tmp_path}/talk", FROM_PARROT)
    assert not desk.mailbox.wait(0.01)
    link = ends.link(hub.endpoint)
    link.send(HELLO)
    assert desk.mailbox.wait(LIMIT_S)
    assert list(hub.drain()) == [(ME, HELLO)]
    assert not desk.mailbox.wait(0.0)


def test_last_words_leave_before_a_mailbox_closes(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.mailbox.failed("goodbye")
    desk.mailbox.close()
    assert desk.hear() == Failed("goodbye")
    desk.reception.close()


def test_closing_does_not_wait_for_ever_for_a_supervisor_that_is_gone(tmp_path: Path) -> None:
    mailbox = Mailbox(ME, f"ipc://{tmp_path}/nobody")
    mailbox.ready()
    started = now()
    mailbox.close(linger_s=0.1)
    assert now() - started < LIMIT_S


async def test_an_event_loop_has_the_same_mailbox(desk: Desk, ends: Ends, tmp_path: Path) -> None:
    hub = ends.hub(f"ipc://{tmp_path}/talk")
    desk.mailbox.hello(1)
    desk.hear()
    on_loop = AsyncMailbox(desk.mailbox)
    desk.reception.hub.send(ME, Roster((ActorStatus(ActorName("cache"), "cache", 0, "dead"),)))
    desk.reception.hub.send(ME, Stop(1.0))
    async with asyncio.timeout(LIMIT_S):
        assert isinstance(await on_loop.next_control(), Roster)
        assert await on_loop.next_control() == Stop(1.0)
        assert desk.mailbox.roster.find("cache") is not None
        assert desk.mailbox.stopping == Stop(1.0)
        link = on_loop.link(hub.endpoint, TO_PARROT)
        await link.send(HELLO)
        assert hear(hub) == (ME, HELLO)
        hub.send(ME, Say("to the loop"))
        assert await link.receive() == Say("to the loop")
    link.close()


def test_a_doorbell_wakes_the_reception_from_any_thread(desk: Desk) -> None:
    reception = desk.reception
    assert not reception.wait(0.0)
    ringer = threading.Thread(target=lambda: [reception.doorbell.post(f"ring {number}") for number in range(1000)])
    ringer.start()
    heard: list[str] = []
    while len(heard) < 1000:
        assert reception.wait(LIMIT_S), "the bell did not wake the loop"
        heard += reception.doorbell.drain()
    ringer.join()
    assert heard == [f"ring {number}" for number in range(1000)]
    assert list(reception.doorbell.drain()) == []
    assert not reception.wait(0.0)


def test_a_reception_that_cannot_bind_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(zmq.ZMQError):
        Reception(f"ipc://{tmp_path}/no/such/folder", Decoder(ActorToSupervisor))


def test_encoded_messages_are_plain_bytes() -> None:
    assert isinstance(encode(HELLO), bytes)

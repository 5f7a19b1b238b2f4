import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pomona.cache.actor import CacheActor, is_gone, owner_of
from pomona.cache.client import CacheClient, Grant, Refusal
from pomona.cache.disk import BlockFolder
from pomona.cache.index import Owner
from pomona.cache.messages import READER, WRITER, BlockKey, CacheStats, CacheToWorker, LeaseId, Release
from pomona.config import Config
from pomona.runtime.actor import ActorFailure
from pomona.runtime.control import Roster
from pomona.runtime.mailbox import Hub, Link, Peer
from pomona.runtime.wire import Decoder, replace
from tests.cache.house import DEADLINE_S, CacheHouse, CacheProcess, until, worker_status

ROOT = BlockKey(b"r" * 32)


def key(number: int) -> BlockKey:
    return BlockKey(bytes([number]) * 32) if number else ROOT


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CacheHouse]:
    with CacheHouse(tmp_path / "kv") as house:
        yield house


def put(client: CacheClient, number: int, size: int = 10) -> None:
    grant = client.reserve(key(number), key(number - 1), size)
    assert isinstance(grant, Grant)
    grant.path.write_bytes(bytes(size))
    assert client.commit(grant)


def stats(client: CacheClient) -> CacheStats:
    answer = client.stats()
    assert answer is not None
    return answer


def test_it_is_ready_once_the_folder_is_scanned(house: CacheHouse, tmp_path: Path) -> None:
    assert house.detail == f"0 blocks, 0 of {1 << 30} bytes"
    with house.client() as client:
        put(client, 1)
        until(lambda: stats(client).blocks == 1, "the commit")
    house.stop()
    house.start()
    assert house.detail == f"1 blocks, 10 of {1 << 30} bytes"


def test_what_one_worker_stored_another_finds(house: CacheHouse) -> None:
    with house.client("worker:m") as writer, house.client("worker:m:2") as reader:
        for number in (1, 2):
            put(writer, number)
        until(lambda: stats(writer).blocks == 2, "the commits")
        lease = reader.lookup([key(1), key(2), key(3)])
        assert lease is not None
        assert [Path(block.path).read_bytes() for block in lease.blocks] == [bytes(10)] * 2
        assert stats(reader).leases == 1
        reader.release(lease)
        assert stats(reader).leases == 0
        refusal = reader.reserve(key(1), ROOT, 10)
        assert isinstance(refusal, Refusal)
        assert refusal.present


def test_a_rejected_block_is_a_miss_and_an_aborted_one_too(house: CacheHouse) -> None:
    with house.client() as client:
        put(client, 1)
        until(lambda: stats(client).blocks == 1, "the commit")
        client.reject(key(1), "bad")
        lease = client.lookup([key(1)])
        assert lease is not None
        assert lease.blocks == ()
        grant = client.reserve(key(2), key(1), 10)
        assert isinstance(grant, Grant)
        client.abort(grant, "no")
        until(lambda: stats(client).reserved_bytes == 0, "the abort")
        assert stats(client).quarantined == 1


def test_leases_and_writes_end_with_the_incarnation_that_took_them(house: CacheHouse) -> None:
    with house.client("worker:m", 1) as old, house.client("worker:n", 1) as other:
        house.workers = (worker_status("worker:m", 1), worker_status("worker:n", 1))
        house.send(house.roster())
        put(old, 1)
        until(lambda: stats(old).blocks == 1, "the commit")
        assert old.lookup([key(1)])
        kept = other.lookup([key(1)])
        assert isinstance(old.reserve(key(2), key(1), 10), Grant)
        house.workers = (worker_status("worker:m", 2), worker_status("worker:n", 1))
        house.send(house.roster())
        until(lambda: stats(other).leases == 1, "the end of the old incarnation's lease")
        assert stats(other).reserved_bytes == 0
        with house.client("worker:m", 1, timeout_s=0.2) as late:
            assert late.lookup([key(1)]) is None, "a dead incarnation is not answered"
        assert stats(other).leases == 1
        with house.client("worker:m", 2) as new:
            assert new.lookup([key(1)])
            assert stats(new).leases == 2
            assert kept is not None
            other.release(kept)
            house.workers = ()
            house.send(house.roster())
            until(lambda: stats(new).leases == 0, "the end of all leases")


@pytest.mark.parametrize(
    ("roster", "missing", "gone"),
    [
        ((), True, True),
        ((), False, False),
        ((worker_status("worker:m", 3),), True, False),
        ((worker_status("worker:m", 3, "starting"),), True, False),
        ((worker_status("worker:m", 3, "stopping"),), True, False),
        ((worker_status("worker:m", 3, "dead"),), False, True),
        ((worker_status("worker:m", 3, "failed"),), False, True),
        ((worker_status("worker:m", 3, "stopped"),), False, True),
        ((worker_status("worker:m", 4, "starting"),), False, True),
        ((worker_status("worker:m", 2, "dead"),), True, False),
        ((worker_status("worker:mm", 4),), False, False),
    ],
)
def test_the_roster_tells_who_is_gone(roster: tuple[object, ...], missing: bool, gone: bool) -> None:
    assert is_gone(Owner("worker:m", 3), Roster(roster), missing) is gone  # type: ignore[arg-type]


def test_both_links_of_a_worker_are_one_owner() -> None:
    me = Owner("worker:a/b@c", 2)
    assert {owner_of(Peer(me.name + end, 2)) for end in ("", READER, WRITER)} == {me}


def test_a_message_that_cannot_be_read_changes_nothing(house: CacheHouse) -> None:
    with house.client() as client:
        link: Link[CacheToWorker] = Link(
            client._context, house.config.cache_endpoint, Peer("worker:x", 1), Decoder(CacheToWorker)
        )
        link.socket.send(b"\xc1 no message")
        link.send(Release(LeaseId(99)))
        put(client, 1)
        until(lambda: stats(client).blocks == 1, "the commit")
        link.close()


def test_a_stop_waits_for_a_write_that_is_under_way(house: CacheHouse, tmp_path: Path) -> None:
    with house.client() as client:
        grant = client.reserve(key(1), ROOT, 10)
        assert isinstance(grant, Grant)
        stopped = threading.Thread(target=house.stop, args=(DEADLINE_S,))
        stopped.start()

        def refused() -> bool:
            answer = client.reserve(key(2), ROOT, 10)
            if isinstance(answer, Grant):
                client.abort(answer, "asked only to see")
            return isinstance(answer, Refusal)

        until(refused, "the stop")
        grant.path.write_bytes(bytes(10))
        assert client.commit(grant)
        stopped.join(DEADLINE_S)
        assert not stopped.is_alive()
    folder = BlockFolder(tmp_path / "kv", 0)
    assert [block.key for block in folder.open()] == [key(1)]
    folder.close()


def test_a_stop_does_not_wait_for_ever(house: CacheHouse, tmp_path: Path) -> None:
    with house.client() as client:
        assert isinstance(client.reserve(key(1), ROOT, 10), Grant)
        house.stop(grace_s=0.2)
    assert list((tmp_path / "kv/tmp").iterdir()) == []


def test_a_second_server_on_the_same_folder_serves_without_it(house: CacheHouse, tmp_path: Path) -> None:
    with CacheHouse(tmp_path / "kv") as second:
        assert second.detail.startswith(f"off: the cache folder {tmp_path}/kv is in use by process {os.getpid()}")
        with second.client() as client:
            assert isinstance(client.reserve(key(1), ROOT, 10), Refusal)
            assert not stats(client).enabled
    with house.client() as client:
        put(client, 1)


def test_housekeeping_goes_on_while_nobody_asks(tmp_path: Path) -> None:
    with CacheHouse(tmp_path / "kv", tick_s=0.01):
        stray = tmp_path / "kv/tmp/stray"
        stray.write_bytes(b"half")
        os.utime(stray, (0, 0))
        until(lambda: not stray.exists(), "the sweep")


def test_no_folder_is_a_mistake_that_is_named(house: CacheHouse) -> None:
    config = replace(house.config, cache_folder="")
    with pytest.raises(ActorFailure, match=r"set cache\.folder"):
        CacheActor(house.spec(), config)


# the client, when the service is not well


def test_the_client_survives_the_service(tmp_path: Path) -> None:
    house = CacheHouse(tmp_path / "kv")
    first = CacheProcess(house)
    with house.client(timeout_s=DEADLINE_S) as client:
        put(client, 1)
        until(lambda: stats(client).blocks == 1, "the commit")
        lease = client.lookup([key(1)])
        grant = client.reserve(key(2), key(1), 10)
        assert lease is not None
        assert isinstance(grant, Grant)
        grant.path.write_bytes(b"half")
        first.kill()

        assert client.on_roster(house.roster("dead"))
        assert client.lookup([key(1)]) is None
        assert isinstance(client.reserve(key(3), key(1), 10), Refusal)
        assert not client.commit(grant)
        assert not grant.path.exists()

        second = CacheProcess(house)
        assert client.on_roster(house.roster())
        assert not client.on_roster(house.roster())
        client.release(lease)
        client.abort(grant, "of an earlier life")
        again = client.lookup([key(1)])
        assert again is not None
        assert [block.key for block in again.blocks] == [key(1)]
        assert stats(client).leases == 1
        put(client, 2)
        until(lambda: stats(client).blocks == 2, "the commit after the restart")
        second.kill()
    house.close()


class Silent:
    """A hub at the service's endpoint that answers only when it is told to."""

    def __init__(self, config: Config) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.hub: Hub[object] = Hub(self.context, config.cache_endpoint, Decoder(object))

    def close(self) -> None:
        self.hub.close()
        self.context.term()


def test_a_silent_service_costs_one_deadline(tmp_path: Path) -> None:
    house = CacheHouse(tmp_path / "kv")
    house.incarnation = 1
    silent = Silent(house.config)
    with house.client(timeout_s=0.05) as client:
        assert client.lookup([key(1)]) is None
        for _ in range(50):
            assert client.lookup([key(1)]) is None
        assert isinstance(client.reserve(key(1), ROOT, 10), Refusal)
        until(lambda: bool(silent.hub.socket.poll(0)), "the question")
        heard = list(silent.hub.drain())
        assert len(heard) <= 2, "nothing more is asked of a service that does not answer"
    silent.close()
    house.close()

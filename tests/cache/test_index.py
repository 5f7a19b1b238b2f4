"""The index against a reference that is plain enough to be believed."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pomona.cache.block import Block
from pomona.cache.index import NO_LEASE, BlockIndex, Owner
from pomona.cache.messages import BlockKey, LeaseId

ANN, BEN = Owner("worker:m", 1), Owner("worker:m", 2)
ROOT = BlockKey(b"r" * 32)


def key(number: int) -> BlockKey:
    return BlockKey(bytes([number]) * 32)


def line(count: int, size: int = 10) -> list[Block]:
    """Blocks 1 to count, each behind the one before."""
    return [Block(key(n), key(n - 1) if n > 1 else ROOT, size) for n in range(1, count + 1)]


def stored(*blocks: Block) -> BlockIndex:
    index = BlockIndex()
    for block in blocks:
        index.reserve(ANN, block)
        assert index.commit(ANN, block.key)
    return index


def evict_all(index: BlockIndex) -> list[BlockKey]:
    order = []
    while (block := index.victim()) is not None:
        index.forget(block.key)
        order.append(block.key)
    return order


def test_tails_go_before_heads() -> None:
    index = stored(*line(4))
    assert evict_all(index) == [key(4), key(3), key(2), key(1)]
    assert index.stored_bytes == 0


def test_a_used_chain_outlives_an_unused_one() -> None:
    used = line(2)
    unused = [Block(key(11), ROOT, 5), Block(key(12), key(11), 5)]
    index = stored(*used, *unused)
    index.touch(key(2))
    assert evict_all(index) == [key(12), key(11), key(2), key(1)]


def test_leased_blocks_stay_until_the_last_lease_ends() -> None:
    index = stored(*line(2))
    first, second = index.lease(ANN, line(2)), index.lease(BEN, line(1))
    assert index.victim() is None
    assert not index.release(BEN, first)
    assert index.release(ANN, first)
    assert not index.release(ANN, first)
    assert evict_all(index) == [key(2)]
    assert index.release(BEN, second)
    assert evict_all(index) == [key(1)]


def test_nothing_is_leased_for_no_blocks() -> None:
    index = BlockIndex()
    assert index.lease(ANN, []) == NO_LEASE
    assert index.leases == 0


def test_the_parent_of_a_block_on_its_way_stays() -> None:
    index = stored(*line(1))
    index.reserve(BEN, line(2)[1])
    assert index.victim() is None
    assert (index.stored_bytes, index.reserved_bytes) == (10, 10)
    assert index.abort(BEN, key(2))
    assert index.victim() == line(1)[0]
    assert index.reserved_bytes == 0


def test_a_block_is_reserved_once_and_committed_by_its_owner_only() -> None:
    index = stored(*line(1))
    index.reserve(ANN, line(2)[1])
    for block in line(2):
        with pytest.raises(ValueError, match="already"):
            index.reserve(BEN, block)
    assert not index.commit(BEN, key(2))
    assert not index.abort(BEN, key(2))
    assert index.commit(ANN, key(2))
    assert not index.commit(ANN, key(2))


def test_all_that_an_owner_holds_ends_with_it() -> None:
    index = stored(*line(2))
    index.lease(ANN, line(2))
    index.lease(BEN, line(1))
    index.reserve(ANN, line(3)[2])
    assert index.owners() == {ANN, BEN}
    assert index.end(ANN) == (key(3),)
    assert index.owners() == {BEN}
    assert index.reserved_bytes == 0
    assert evict_all(index) == [key(2)]
    assert index.end(ANN) == ()


def test_a_block_forgotten_under_a_lease_may_come_again() -> None:
    index = stored(*line(1))
    lease = index.lease(ANN, line(1))
    index.forget(key(1))
    assert index.stored_bytes == 0
    index.reserve(BEN, line(1)[0])
    index.commit(BEN, key(1))
    assert index.victim() is None
    index.release(ANN, lease)
    assert index.victim() == line(1)[0]


def test_only_leading_blocks_are_found() -> None:
    index = stored(*line(3))
    index.forget(key(2))
    assert [block.key for block in index.leading([key(1), key(2), key(3)])] == [key(1)]
    assert index.leading([]) == ()


def test_after_a_load_ancestors_are_as_recent_as_what_was_asked_for() -> None:
    old_line, other = line(3), Block(key(9), ROOT, 1)
    index = BlockIndex()
    index.load([old_line[0], old_line[1], other, old_line[2]])
    assert evict_all(index) == [key(9), key(3), key(2), key(1)]


def test_a_load_takes_orphans_and_forged_rings_and_happens_once() -> None:
    ring = [Block(key(1), key(2), 1), Block(key(2), key(1), 1)]
    orphan = Block(key(4), key(3), 1)
    index = BlockIndex()
    index.load([*ring, orphan])
    assert index.stored_bytes == 3
    index.touch(key(1))
    assert evict_all(index) == [key(4)]
    with pytest.raises(ValueError, match="once"):
        index.load([])


@dataclass
class Reference:
    """Recency as numbers, and every question answered by looking at everything."""

    blocks: dict[BlockKey, Block] = field(default_factory=dict)
    stamps: dict[BlockKey, int] = field(default_factory=dict)
    reserved: dict[BlockKey, tuple[Owner, Block]] = field(default_factory=dict)
    leases: dict[LeaseId, tuple[Owner, list[BlockKey]]] = field(default_factory=dict)
    clock: int = 0

    def touch(self, key: BlockKey) -> None:
        while key in self.blocks:
            self.clock += 1
            self.stamps[key] = self.clock
            key = self.blocks[key].parent

    def victim(self) -> Block | None:
        held = {key for _, keys in self.leases.values() for key in keys}
        parents = {block.parent for block in self.blocks.values()} | {
            block.parent for _, block in self.reserved.values()
        }
        free = [block for block in self.blocks.values() if block.key not in held | parents]
        return min(free, key=lambda block: self.stamps[block.key], default=None)


TREE = {n: Block(key(n), key(n // 2) if n > 1 else ROOT, n) for n in range(1, 16)}
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "commit", "abort", "touch", "lease", "release", "forget", "evict", "end", "load"]),
        st.integers(1, 15),
        st.sampled_from([ANN, BEN]),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=400)
@given(OPERATIONS)
def test_the_index_does_what_the_reference_does(operations: list[tuple[str, int, Owner]]) -> None:
    index, plain = BlockIndex(), Reference()
    for operation, number, owner in operations:
        block = TREE[number]
        match operation:
            case "reserve":
                if block.key not in plain.blocks and block.key not in plain.reserved:
                    index.reserve(owner, block)
                    plain.reserved[block.key] = (owner, block)
            case "commit" | "abort":
                mine = plain.reserved.get(block.key, (None, block))[0] == owner
                assert (index.commit if operation == "commit" else index.abort)(owner, block.key) == mine
                if mine:
                    del plain.reserved[block.key]
                    if operation == "commit":
                        plain.blocks[block.key] = block
                        plain.touch(block.key)
            case "touch":
                index.touch(block.key)
                plain.touch(block.key)
            case "lease":
                path = []
                step: int = number
                while step:
                    path.insert(0, key(step))
                    step //= 2
                found = index.leading(path)
                expected = []
                for one in path:
                    if one not in plain.blocks:
                        break
                    expected.append(plain.blocks[one])
                assert list(found) == expected
                lease = index.lease(owner, found)
                if found:
                    assert lease not in plain.leases
                    plain.leases[lease] = (owner, [one.key for one in found])
            case "release":
                lease = LeaseId(number)
                mine = lease in plain.leases and plain.leases[lease][0] == owner
                assert index.release(owner, lease) == mine
                if mine:
                    del plain.leases[lease]
            case "forget":
                index.forget(block.key)
                plain.blocks.pop(block.key, None)
            case "evict":
                victim = index.victim()
                if victim is not None:
                    assert all(other.parent != victim.key for other in plain.blocks.values())
                    index.forget(victim.key)
                    del plain.blocks[victim.key]
            case "end":
                gone = {one for one, (holder, _) in plain.reserved.items() if holder == owner}
                assert set(index.end(owner)) == gone
                plain.reserved = {one: held for one, held in plain.reserved.items() if one not in gone}
                plain.leases = {one: held for one, held in plain.leases.items() if held[0] != owner}
            case "load" if not plain.reserved and not plain.leases:
                again = BlockIndex()
                again.load(index.blocks())
                index = again
                order = sorted(plain.blocks, key=plain.stamps.__getitem__)
                for one in order:
                    plain.touch(one)
        assert index.victim() == plain.victim()
        assert index.stored_bytes == sum(one.size for one in plain.blocks.values())
        assert index.reserved_bytes == sum(one.size for _, one in plain.reserved.values())
        assert {one.key for one in index.blocks()} == set(plain.blocks)
        holders = {held[0] for held in plain.reserved.values()} | {held[0] for held in plain.leases.values()}
        assert index.owners() == holders

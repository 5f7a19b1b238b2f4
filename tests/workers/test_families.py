"""What is restored goes on as what was computed, for every family of caches and both tiers."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import pytest

from pomona.cache.client import CacheClient
from pomona.cache.keys import Fingerprint
from pomona.runtime.mailbox import Peer
from pomona.workers.prefill import WORTH_MARKING, Prefill, plan_chunk, run_chunk
from pomona.workers.prefix import PrefixStore
from pomona.workers.recent import RecentPrefixes
from pomona.workers.row import Row
from pomona.workers.storage import probe_layout
from tests.cache.house import DEADLINE_S, CacheHouse, until
from tests.workers.engines import ask, tiny, words
from tests.workers.families import SETTINGS, STATEFUL, model_of

BLOCK = 16
PROMPT = words(1, 91)
COMPUTED = len(PROMPT) - 1
AFTER = 3
"""Tokens that are decoded one by one behind a restored prefix."""
CLOSE = 2e-4


def open_store(family: str, house: CacheHouse | None = None, ram_bytes: int = 0, name: str = "worker:m") -> PrefixStore:
    layout = probe_layout(model_of(family))
    client = None
    if house is not None:
        client = CacheClient(house.config.cache_endpoint, Peer(name, 1), timeout_s=DEADLINE_S)
    root = Fingerprint(family, "t", layout, BLOCK).root
    store = PrefixStore(client, root, layout, BLOCK, RecentPrefixes(ram_bytes))
    if house is not None:
        store.on_roster(house.roster())
    return store


def prefill_of(family: str, tokens: Sequence[int], store: PrefixStore) -> Prefill:
    """Looked up, not computed."""
    loaded = tiny()
    prefill = Prefill(model_of(family), Row(ask("a", tokens), loaded.vocabulary, loaded.eos), store)
    prefill.begin()
    return prefill


def compute(family: str, prefill: Prefill, chunk: int = 25) -> Prefill:
    while prefill.left:
        run_chunk(model_of(family), plan_chunk([prefill], chunk))
    prefill.store()
    return prefill


def goes_on_as_cold(family: str, prefill: Prefill, tokens: Sequence[int], cold: mx.array) -> None:
    """The logits behind each of `tokens`, from the one behind the prefill's on, are those of one cold forward."""
    model, done = model_of(family), prefill.done
    # First several at once, then one at a time.
    pieces = [list(tokens[done : len(tokens) - AFTER]), *([token] for token in tokens[len(tokens) - AFTER :])]
    for piece in filter(None, pieces):
        logits = model(mx.array([piece]), cache=prefill.caches)
        expected = cold[:, done : done + len(piece)]
        assert mx.allclose(logits, expected, atol=CLOSE, rtol=CLOSE).item(), (done, len(piece))
        done += len(piece)


def cold_logits(family: str, tokens: Sequence[int]) -> mx.array:
    model = model_of(family)
    logits: mx.array = model(mx.array([tokens]), cache=prefill_of(family, tokens, open_store(family)).caches)
    mx.eval(logits)
    return logits


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CacheHouse]:
    with CacheHouse(tmp_path / "kv") as house:
        yield house


def at_every_cut(family: str, store: PrefixStore, expected: dict[int, int]) -> None:
    """Prompts that leave the stored one after each number of tokens restore what is expected, and go on from there."""
    for cut, length in expected.items():
        tokens = [*PROMPT[:cut], *words(1000 + cut, 9 + AFTER)]
        prefill = prefill_of(family, tokens, store)
        assert (cut, prefill.restored) == (cut, length)
        goes_on_as_cold(family, prefill, tokens, cold_logits(family, tokens))


CUTS = (1, 2, 15, 16, 17, 31, 32, 33, 50, 80, 89, 90)


@pytest.mark.parametrize("family", SETTINGS)
def test_memory_restores_up_to_the_last_mark_before_the_fork(family: str) -> None:
    store = open_store(family, ram_bytes=1 << 30)
    compute(family, prefill_of(family, PROMPT, store))
    marked = {cut: cut if cut == COMPUTED else cut // BLOCK * BLOCK for cut in CUTS}
    at_every_cut(family, store, marked if family in STATEFUL else {cut: cut for cut in CUTS})


@pytest.mark.parametrize("family", SETTINGS)
def test_the_disk_restores_whole_blocks(family: str, house: CacheHouse) -> None:
    writer = open_store(family, house)
    compute(family, prefill_of(family, PROMPT, writer))
    until(lambda: writer.stored_blocks + writer.dropped_blocks >= COMPUTED // BLOCK, "the blocks")
    assert (writer.stored_blocks, writer.dropped_blocks) == (COMPUTED // BLOCK, 0)
    writer.close(DEADLINE_S)
    reader = open_store(family, house, name="worker:n")
    at_every_cut(family, reader, {cut: cut // BLOCK * BLOCK for cut in CUTS})
    reader.close(DEADLINE_S)


def settled(store: PrefixStore, blocks: int) -> None:
    until(lambda: store.stored_blocks + store.dropped_blocks >= blocks, f"{blocks} blocks to be written")


@pytest.mark.parametrize("family", ["plain", "wide window", "recurrent"])
def test_a_bad_block_is_put_aside_and_what_lies_before_it_is_restored(family: str, house: CacheHouse) -> None:
    store = open_store(family, house)
    compute(family, prefill_of(family, PROMPT, store))
    settled(store, 5)
    client = store._client
    assert client is not None
    lease = client.lookup(store.keys_of(PROMPT, "")[1:])
    assert lease is not None
    paths = [Path(block.path) for block in lease.blocks]
    client.release(lease)
    for path, length in ((paths[4], 4 * BLOCK), (paths[1], BLOCK)):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1  # of the state, where there is one
        path.write_bytes(data)
        prefill = prefill_of(family, PROMPT, store)
        # A state that is not needed is not read: the second bad file is found where it is the last of the chain.
        assert prefill.restored == (length if path == paths[4] or family == "plain" else 4 * BLOCK)
        goes_on_as_cold(family, prefill, PROMPT, cold_logits(family, PROMPT))
    prefill = prefill_of(family, PROMPT[: 2 * BLOCK + 1], store)
    assert prefill.restored == BLOCK
    store.close(DEADLINE_S)


def test_a_stored_prefix_of_another_layout_is_a_miss(house: CacheHouse) -> None:
    """Even where all else that names it is the same."""
    stores = {family: open_store(family, house, name=f"worker:{family}") for family in SETTINGS}
    for store in stores.values():
        store._root_for_salt = stores["plain"]._root_for_salt
    compute("wide window", prefill_of("wide window", PROMPT, stores["wide window"]))
    settled(stores["wide window"], 5)
    for family in ("plain", "quantized", "narrow window", "chunked", "recurrent", "hybrid", "list"):
        assert prefill_of(family, PROMPT, stores[family]).restored == 0
    for store in stores.values():
        store.close(DEADLINE_S)


@pytest.mark.parametrize(("family", "again"), [("plain", 5), ("hybrid", 0)])
def test_what_the_queue_refused_is_offered_again_where_it_is_still_there(
    family: str, again: int, house: CacheHouse
) -> None:
    """Slices stay until the end of the prompt; state is gone, and with it all that would lie behind it."""
    store = open_store(family, house)
    prefill = prefill_of(family, PROMPT, store)
    assert store._writer is not None
    store._writer._max_bytes, room = 0, store._writer._max_bytes
    for _ in range(2):
        run_chunk(model_of(family), plan_chunk([prefill], BLOCK))
    store._writer._max_bytes = room
    compute(family, prefill, BLOCK)
    settled(store, 5)
    assert (store.stored_blocks, store.dropped_blocks) == (again, 5 - again)
    store.close(DEADLINE_S)


def test_an_answer_whose_blocks_have_no_state_leaves_no_block_that_nothing_finds(house: CacheHouse) -> None:
    store = open_store("hybrid", house)
    prefill = compute("hybrid", prefill_of("hybrid", PROMPT[: BLOCK + 5], store))
    settled(store, 1)
    model_of("hybrid")(mx.array([PROMPT[BLOCK + 4 : 3 * BLOCK]]), cache=prefill.caches)
    assert not store.wants(prefill.done, 3 * BLOCK)
    store.store(PROMPT[: 3 * BLOCK], "", prefill.caches, prefill.done)
    store.close(DEADLINE_S)
    assert (store.stored_blocks, store.dropped_blocks) == (1, 0)


def test_chunks_end_at_block_ends_only_where_state_is_to_be_taken(house: CacheHouse) -> None:
    for family, kept, size in (("hybrid", 1, BLOCK), ("hybrid", 0, 25), ("plain", 1, 25)):
        prefill = prefill_of(family, PROMPT, open_store(family, ram_bytes=kept))
        assert plan_chunk([prefill], 25) == [(prefill, size)]
    store = open_store("hybrid", house)
    prefill = prefill_of("hybrid", PROMPT, store)
    sizes = []
    while prefill.left:
        parts = plan_chunk([prefill], 10)
        sizes.append(parts[0].tokens)
        run_chunk(model_of("hybrid"), parts)
    assert sizes == [10, 6] * 5 + [10]
    store.close(DEADLINE_S)


def test_marks_of_a_long_prompt_stay_within_the_memory_of_their_tier() -> None:
    store = open_store("recurrent", ram_bytes=1 << 30)
    one = prefill_of("recurrent", PROMPT[: BLOCK + 1], store)
    compute("recurrent", one)
    size = sum(cache.nbytes for cache in one.caches)
    store = open_store("recurrent", ram_bytes=3 * size)
    prefill = prefill_of("recurrent", words(5, 20 * BLOCK), store)
    while prefill.left:
        run_chunk(model_of("recurrent"), plan_chunk([prefill], 100))
        assert prefill.nbytes <= 4 * size


def test_the_end_of_a_system_prompt_is_marked_once_two_prompts_have_left_it() -> None:
    """Blocks are long where the state is large; the third prompt computes none of what it shares."""
    family = "hybrid"
    layout = probe_layout(model_of(family))
    root = Fingerprint(family, "t", layout, 64).root
    store = PrefixStore(None, root, layout, 64, RecentPrefixes(1 << 30))
    system, restored = words(7, 64 + WORTH_MARKING + 5), []
    for number in range(4):
        tokens = (*system, *words(20 + number, 9 + AFTER))
        prefill = prefill_of(family, tokens, store)
        restored.append(prefill.restored)
        while prefill.left > AFTER + 1:
            run_chunk(model_of(family), plan_chunk([prefill], min(25, prefill.left - AFTER - 1)))
        prefill.store()
        goes_on_as_cold(family, prefill, tokens, cold_logits(family, tokens))
    assert restored == [0, 64, len(system), len(system)]
    short = (*words(7, WORTH_MARKING - 1), *words(30, 9))
    for _ in range(2):
        prefill = prefill_of(family, short, store)
        assert plan_chunk([prefill], 100) == [(prefill, len(short) - 1)], "not worth a forward of its own"

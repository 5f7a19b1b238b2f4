"""What is restored goes on as what was computed, for every family of caches and both tiers."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import pytest

from pomona.cache.client import CacheClient
from pomona.cache.keys import Fingerprint
from pomona.runtime.mailbox import Peer
from pomona.workers.prefill import Prefill, plan_chunk, run_chunk
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

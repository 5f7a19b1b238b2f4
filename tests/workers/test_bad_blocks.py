"""A stored file that is not the block it should be is a miss, put aside and told of in one line."""

import json
import logging
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.llama import Model

from pomona.cache.keys import FORMAT_VERSION
from pomona.cache.layout import KVLayout
from pomona.workers.prefix import PrefixStore
from tests.cache.house import DEADLINE_S, CacheHouse, until
from tests.workers.test_prefix import (  # noqa: F401  (fixtures)
    BLOCK,
    TOKENS,
    bits,
    house,
    layout,
    model,
    open_store,
    prefilled,
    settled,
)

Spoil = Callable[[Path, Path, Path], bytes]
"""What lies in place of a block, given its own file, another block's, and the same block's of another model."""


def _flipped(path: Path, byte: int) -> bytes:
    data = bytearray(path.read_bytes())
    data[byte] ^= 4
    return bytes(data)


def _of_version(path: Path, version: int) -> bytes:
    """Whole, with a header of the same length, and its checksums right."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"]["format"] = f"pomona-kv-{version}"
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", length) + text.ljust(length) + data[8 + length :]


SPOILS: dict[str, Spoil] = {
    "a flipped bit of the payload": lambda own, other, foreign: _flipped(own, -1000),
    "a flipped bit of the header": lambda own, other, foreign: _flipped(own, 40),
    "a flipped bit of the header's length": lambda own, other, foreign: _flipped(own, 0),
    "zeros behind a power loss": lambda own, other, foreign: own.read_bytes()[:4096].ljust(own.stat().st_size, b"\0"),
    "cut by a byte": lambda own, other, foreign: own.read_bytes()[:-1],
    "cut in the header": lambda own, other, foreign: own.read_bytes()[:100],
    "empty": lambda own, other, foreign: b"",
    "longer": lambda own, other, foreign: own.read_bytes() + b"\0",
    "another block": lambda own, other, foreign: other.read_bytes(),
    "another model": lambda own, other, foreign: foreign.read_bytes(),
    "a later format": lambda own, other, foreign: _of_version(own, FORMAT_VERSION + 1),
    "no block at all": lambda own, other, foreign: b"PK\x03\x04" + bytes(own.stat().st_size - 4),
}


@pytest.fixture
def store(house: CacheHouse, layout: KVLayout) -> Iterator[PrefixStore]:  # noqa: F811
    store = open_store(house, layout)
    yield store
    store.close(DEADLINE_S)


def paths_of(store: PrefixStore) -> list[Path]:
    client = store._client
    assert client is not None
    lease = client.lookup(store.keys_of(TOKENS, "")[1:])
    assert lease is not None
    client.release(lease)
    return [Path(block.path) for block in lease.blocks]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("restarted", [False, True], ids=["while serving", "found by the next start"])
@pytest.mark.parametrize("spoil", SPOILS)
def test_a_bad_file_is_a_miss_and_one_line(
    house: CacheHouse,  # noqa: F811
    store: PrefixStore,
    model: Model,  # noqa: F811
    layout: KVLayout,  # noqa: F811
    spoil: str,
    restarted: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cold = prefilled(model, TOKENS)
    stranger = open_store(house, layout, weights="others", name="worker:n")
    for each in (store, stranger):
        each.store(TOKENS, "", cold, 0)
        settled(each, 6)
    third, fourth = paths_of(store)[2:4]
    foreign = paths_of(stranger)[2]
    stranger.close(DEADLINE_S)
    bad = SPOILS[spoil](third, fourth, foreign)
    if restarted:
        store.on_roster(house.roster("dead"))
        house.stop()
    third.write_bytes(bad)
    if restarted:
        house.start()
        store.on_roster(house.roster())

    warm = make_prompt_cache(model)
    assert store.restore(TOKENS, "", warm) == 2 * BLOCK
    assert bits(warm, 2 * BLOCK) == bits(cold, 2 * BLOCK)
    quarantined = Path(house.config.cache_folder) / "quarantine" / third.name
    until(quarantined.exists, "the file to be put aside")
    assert quarantined.read_bytes() == bad
    assert not third.exists()
    for _ in range(3):
        assert store.restore(TOKENS, "", make_prompt_cache(model)) == 2 * BLOCK
    (line,) = warnings(caplog)
    assert line.startswith(f"block-bad path={third} reason=")

    store.store(TOKENS, "", cold, 2 * BLOCK)
    until(lambda: store.restore(TOKENS, "", make_prompt_cache(model)) == 6 * BLOCK, "the block to be stored again")
    assert len(warnings(caplog)) == 1

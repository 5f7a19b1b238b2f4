"""What a worker writes is what the cache room reads without knowing the model."""

import random
from pathlib import Path

import pytest

from pomona.cache.block import Block
from pomona.cache.header import DamagedBlock, check
from pomona.cache.layout import ArrayLayout, KVLayout, LayerLayout, plain
from pomona.cache.messages import BlockKey
from pomona.workers.block_file import BlockFormat, write

KEY, PARENT = BlockKey(b"k" * 32), BlockKey(b"p" * 32)
STATE = LayerLayout("arrays", (ArrayLayout("state0", "float16", (1, 3, 5)),))
QUANTISED = LayerLayout(
    "quantized",
    (ArrayLayout("keys", "uint32", (1, 2, 1, 8)), ArrayLayout("keys_scales", "bfloat16", (1, 2, 1, 2))),
    group_size=32,
    bits=8,
)
WINDOW = plain(2, 4, 4)._replace(kind="rotating", span=24)
LAYOUTS = [
    KVLayout((plain(2, 4, 4),)),
    KVLayout((QUANTISED, plain(1, 4, 2, "float16"))),
    KVLayout((STATE, plain(2, 4, 4), WINDOW)),
    KVLayout((STATE,)),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "quantised", "hybrid", "recurrent"])
def test_every_kind_of_block_is_found_whole_and_a_flipped_bit_damage(layout: KVLayout, tmp_path: Path) -> None:
    form, end, path = BlockFormat(layout, 16), 48, tmp_path / "block"
    payload = random.Random(1).randbytes(form.payload_bytes(end))
    head = form.header(KEY, PARENT, payload, end)
    write(path, head, payload)
    block = Block(KEY, PARENT, path.stat().st_size)
    with path.open("rb") as file:
        header = check(file, block)
    assert (header.tokens, header.end) == (16, end)
    assert header.start == len(head)
    for byte in random.Random(2).sample(range(len(payload)), 20):
        flipped = bytearray(payload)
        flipped[byte] ^= 1 << byte % 8
        path.write_bytes(head + flipped)
        with path.open("rb") as file, pytest.raises(DamagedBlock, match="checksum"):
            check(file, block)

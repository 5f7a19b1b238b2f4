import io
import random

import pytest

from pomona.cache.header import DamagedBlock, Header, check, read_header
from tests.cache.block_files import ROOT, TOKENS, block_bytes, block_of, key

OWN = key(1)


def checked(data: bytes, size: int | None = None) -> Header:
    block = block_of(OWN, ROOT, data)
    return check(io.BytesIO(data), block if size is None else block._replace(size=size))


@pytest.mark.parametrize("state", [0, 1, 40])
def test_a_whole_file_tells_its_tokens_and_dtypes(state: int) -> None:
    header = checked(block_bytes(OWN, ROOT, end=48, state=state))
    assert (header.tokens, header.end) == (TOKENS, 48)
    assert header.dtypes == (("F32", "U8") if state else ("F32",))


@pytest.mark.parametrize("state", [0, 40])
def test_a_flipped_bit_of_the_payload_is_found_wherever_it_is(state: int) -> None:
    data = block_bytes(OWN, ROOT, state=state)
    for byte in range(len(data) - 128 - state, len(data)):
        flipped = bytearray(data)
        flipped[byte] ^= 1 << byte % 8
        with pytest.raises(DamagedBlock, match="checksum"):
            checked(bytes(flipped))


def test_a_flipped_bit_of_the_header_never_ends_in_another_error() -> None:
    data = block_bytes(OWN, ROOT)
    rng = random.Random(1)
    found = 0
    for byte in range(len(data) - 128):
        flipped = bytearray(data)
        flipped[byte] ^= 1 << rng.randrange(8)
        try:
            checked(bytes(flipped))
        except DamagedBlock:
            found += 1
    assert found > 0.8 * (len(data) - 128)  # names of arrays and counts of tokens are for the model to compare


@pytest.mark.parametrize("cut", [0, 4, 8, 100, 300])
def test_a_file_cut_short_is_damaged(cut: int) -> None:
    data = block_bytes(OWN, ROOT)
    with pytest.raises(DamagedBlock):
        check(io.BytesIO(data[:cut]), block_of(OWN, ROOT, data))


def test_a_file_that_goes_on_is_damaged() -> None:
    data = block_bytes(OWN, ROOT)
    with pytest.raises(DamagedBlock, match="goes on behind"):
        check(io.BytesIO(data + b"x"), block_of(OWN, ROOT, data))


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"key": key(2).hex()}, "key is '0202"),
        ({"parent": key(2).hex()}, "parent is '0202"),
        ({"format": "pomona-kv-0"}, "format is 'pomona-kv-0', not"),
        ({"tokens": "many"}, "the header cannot be read"),
    ],
)
def test_a_header_that_names_another_block_is_refused(facts: dict[str, str], said: str) -> None:
    with pytest.raises(DamagedBlock, match=said):
        checked(block_bytes(OWN, ROOT, **facts))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"[64, 128]", b"[60, 124]"),
        (b"[64, 128]", b"[64, 120]"),
        (b"[0, 64]", b"[4, 68]"),
        (b'"F32", "shape": [1, 1, 16, 1], "data_offsets": [0', b'"F16", "shape": [1, 1, 16, 1], "data_offsets": [0'),
        (b'"F32"', b'"F31"'),
    ],
)
def test_arrays_must_fill_the_payload(old: bytes, new: bytes) -> None:
    data = block_bytes(OWN, ROOT)
    assert old in data
    with pytest.raises(DamagedBlock):
        checked(data.replace(old, new, 1))


def test_a_header_of_a_size_that_cannot_be_is_not_read() -> None:
    data = b"\xff" * 8 + block_bytes(OWN, ROOT)[8:]
    with pytest.raises(DamagedBlock, match="no header"):
        read_header(io.BytesIO(data), block_of(OWN, ROOT, data))

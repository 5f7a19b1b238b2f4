import json
import random
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from pomona.cache.keys import FORMAT_VERSION
from pomona.cache.layout import KVLayout, LayerLayout
from pomona.cache.messages import BlockKey
from pomona.workers.block_file import BlockError, BlockFormat, write

FORM = BlockFormat(KVLayout("float32", (LayerLayout(2, 4, 4), LayerLayout(1, 4, 2))), 16)
KEY, PARENT = BlockKey(b"k" * 32), BlockKey(b"p" * 32)
PAYLOAD = random.Random(1).randbytes(FORM.payload_bytes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "block"
    write(path, FORM.header(KEY, PARENT, PAYLOAD), PAYLOAD)
    return path


def test_a_block_comes_back_to_the_bit(path: Path) -> None:
    assert FORM.payload_bytes == 16 * 4 * (2 * 8 + 6)
    assert FORM.read(path, KEY, PARENT) == PAYLOAD
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_any_safetensors_reader_understands_the_file(path: Path) -> None:
    with safe_open(path, framework="numpy") as file:
        facts = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    assert facts["format"] == f"pomona-kv-{FORMAT_VERSION}"
    assert facts["key"] == KEY.hex()
    assert facts["parent"] == PARENT.hex()
    assert facts["tokens"] == "16"
    joined = b"".join(np.ascontiguousarray(arrays[slot.name]).tobytes() for slot in FORM.slots)
    assert joined == PAYLOAD
    assert arrays["layers.1.values"].shape == (1, 1, 16, 2)


def test_a_file_is_never_written_over(path: Path) -> None:
    with pytest.raises(FileExistsError):
        write(path, b"", b"")
    assert FORM.read(path, KEY, PARENT) == PAYLOAD


def test_a_flipped_bit_is_found_wherever_it_is(path: Path) -> None:
    whole = path.read_bytes()
    header = len(whole) - len(PAYLOAD)
    rng = random.Random(2)
    bits = [8 * byte + rng.randrange(8) for byte in (*range(header), *rng.sample(range(header, len(whole)), 100))]
    for bit in bits:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(BlockError):
            FORM.read(path, KEY, PARENT)


def test_every_cut_is_found_and_so_is_a_longer_file(path: Path) -> None:
    whole = path.read_bytes()
    header = len(whole) - len(PAYLOAD)
    for length in [*range(header + 1), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(BlockError):
            FORM.read(path, KEY, PARENT)
    path.write_bytes(whole + b"\0")
    with pytest.raises(BlockError, match="bytes, with a header of"):
        FORM.read(path, KEY, PARENT)


def test_a_missing_file_and_a_folder_are_bad_blocks(tmp_path: Path) -> None:
    for bad in (tmp_path / "none", tmp_path):
        with pytest.raises(BlockError, match="cannot be read"):
            FORM.read(bad, KEY, PARENT)


@pytest.mark.parametrize(
    ("form", "key", "parent", "complaint"),
    [
        (FORM, PARENT, PARENT, "key is"),
        (FORM, KEY, KEY, "parent is"),
        (FORM._replace(layout=FORM.layout._replace(layers=FORM.layout.layers[::-1])), KEY, PARENT, "shapes"),
        (
            FORM._replace(layout=KVLayout("float16", (LayerLayout(4, 4, 4), LayerLayout(2, 4, 2)))),
            KEY,
            PARENT,
            "shapes",
        ),
        (
            FORM._replace(tokens=8, layout=KVLayout("float32", (LayerLayout(4, 4, 4), LayerLayout(2, 4, 2)))),
            KEY,
            PARENT,
            "tokens is",
        ),
    ],
)
def test_a_whole_file_of_another_block_or_model_is_refused(
    path: Path, form: BlockFormat, key: BlockKey, parent: BlockKey, complaint: str
) -> None:
    with pytest.raises(BlockError, match=complaint):
        form.read(path, key, parent)


@pytest.mark.parametrize(
    "header",
    [b"[]", b"{}", b'{"__metadata__": 3}', b'{"__metadata__": {}}', b"\xff", b'{"__metadata__": {"crc32": ""}}'],
)
def test_a_strange_header_is_a_bad_block(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "block"
    path.write_bytes(struct.pack("<Q", len(header)) + header + PAYLOAD)
    with pytest.raises(BlockError):
        FORM.read(path, KEY, PARENT)


def test_another_format_version_is_refused(path: Path) -> None:
    header = FORM.header(KEY, PARENT, PAYLOAD)
    table = json.loads(header[8:])
    table["__metadata__"]["format"] = f"pomona-kv-{FORMAT_VERSION + 1}"
    text = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + PAYLOAD)
    with pytest.raises(BlockError, match="format is"):
        FORM.read(path, KEY, PARENT)

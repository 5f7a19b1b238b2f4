import json
import random
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from pomona.cache.keys import FORMAT_VERSION
from pomona.cache.layout import ArrayLayout, KVLayout, LayerLayout, plain
from pomona.cache.messages import BlockKey
from pomona.workers.block_file import BlockError, BlockFormat, write

END = 48
STATE = LayerLayout("arrays", (ArrayLayout("state0", "float16", (1, 3, 5)),))
WINDOW = plain(2, 4, 4)._replace(kind="rotating", span=24)
FORM = BlockFormat(KVLayout((plain(2, 4, 4), STATE, plain(1, 4, 2, "float16"), WINDOW)), 16)
KEY, PARENT = BlockKey(b"k" * 32), BlockKey(b"p" * 32)
PAYLOAD = random.Random(1).randbytes(FORM.payload_bytes(END))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "block"
    write(path, FORM.header(KEY, PARENT, PAYLOAD, END), PAYLOAD)
    return path


def whole(path: Path) -> bytes:
    """Both parts of the block."""
    return b"".join(FORM.read(path, KEY, PARENT, END, part) for part in ("slices", "state"))


def test_a_block_comes_back_to_the_bit(path: Path) -> None:
    assert FORM.slice_bytes == 16 * (4 * 2 * 8 + 2 * 6)
    assert FORM.payload_bytes(END) == FORM.slice_bytes + 24 * 4 * 2 * 8 + 2 * 3 * 5
    assert whole(path) == PAYLOAD
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_any_safetensors_reader_understands_the_file(path: Path) -> None:
    with safe_open(path, framework="numpy") as file:
        facts = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    assert facts["format"] == f"pomona-kv-{FORMAT_VERSION}"
    assert facts["key"] == KEY.hex()
    assert facts["parent"] == PARENT.hex()
    assert facts["tokens"] == "16"
    assert facts["end"] == "48"
    joined = b"".join(np.ascontiguousarray(arrays[slot.name]).tobytes() for slot in FORM.slots(END))
    assert joined == PAYLOAD
    assert arrays["layers.0.values"].shape == (1, 2, 16, 4)
    assert arrays["layers.1.state0"].shape == (1, 3, 5)
    assert arrays["layers.3.keys"].shape == (1, 2, 24, 4)


def test_a_window_that_is_not_full_takes_what_it_holds() -> None:
    assert [FORM.payload_bytes(end) - FORM.payload_bytes(END) for end in (16, 32)] == [-8 * 4 * 2 * 8, 0]


def test_only_the_part_that_is_read_is_checked(path: Path) -> None:
    """A prefix of many blocks needs no state but the last one's."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert FORM.read(path, KEY, PARENT, END, "slices") == PAYLOAD[: FORM.slice_bytes]
    with pytest.raises(BlockError, match="does not match the state"):
        FORM.read(path, KEY, PARENT, END, "state")


def test_a_file_is_never_written_over(path: Path) -> None:
    with pytest.raises(FileExistsError):
        write(path, b"", b"")
    assert whole(path) == PAYLOAD


def test_a_flipped_bit_is_found_wherever_it_is(path: Path) -> None:
    data = path.read_bytes()
    header = len(data) - len(PAYLOAD)
    rng = random.Random(2)
    bits = [8 * byte + rng.randrange(8) for byte in (*range(header), *rng.sample(range(header, len(data)), 100))]
    for bit in bits:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(BlockError):
            whole(path)


def test_every_cut_is_found_and_so_is_a_longer_file(path: Path) -> None:
    data = path.read_bytes()
    header = len(data) - len(PAYLOAD)
    for length in [*range(header + 1), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(BlockError):
            whole(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(BlockError, match="bytes, with a header of"):
        whole(path)


def test_a_missing_file_and_a_folder_are_bad_blocks(tmp_path: Path) -> None:
    for bad in (tmp_path / "none", tmp_path):
        with pytest.raises(BlockError, match="cannot be read"):
            whole(bad)


LAYERS = FORM.layout.layers


@pytest.mark.parametrize(
    ("form", "key", "parent", "end", "complaint"),
    [
        (FORM, PARENT, PARENT, END, "key is"),
        (FORM, KEY, KEY, END, "parent is"),
        (FORM, KEY, PARENT, 32, "end is"),
        (FORM, KEY, PARENT, 16, "bytes, with a header of"),
        (FORM._replace(layout=KVLayout((LAYERS[2], LAYERS[1], LAYERS[0], LAYERS[3]))), KEY, PARENT, END, "shapes"),
        (FORM._replace(layout=KVLayout((plain(4, 4, 4, "float16"), *LAYERS[1:]))), KEY, PARENT, END, "shapes"),
        (
            BlockFormat(KVLayout((plain(4, 4, 4), STATE, plain(2, 4, 2, "float16"), WINDOW)), 8),
            KEY,
            PARENT,
            END,
            "tokens is",
        ),
    ],
)
def test_a_whole_file_of_another_block_or_model_is_refused(
    path: Path, form: BlockFormat, key: BlockKey, parent: BlockKey, end: int, complaint: str
) -> None:
    with pytest.raises(BlockError, match=complaint):
        form.read(path, key, parent, end)


@pytest.mark.parametrize(
    "header",
    [b"[]", b"{}", b'{"__metadata__": 3}', b'{"__metadata__": {}}', b"\xff", b'{"__metadata__": {"crc32": ""}}'],
)
def test_a_strange_header_is_a_bad_block(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "block"
    path.write_bytes(struct.pack("<Q", len(header)) + header + PAYLOAD)
    with pytest.raises(BlockError):
        whole(path)


def test_another_format_version_is_refused(path: Path) -> None:
    header = FORM.header(KEY, PARENT, PAYLOAD, END)
    table = json.loads(header[8:])
    table["__metadata__"]["format"] = f"pomona-kv-{FORMAT_VERSION + 1}"
    text = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + PAYLOAD)
    with pytest.raises(BlockError, match="format is"):
        whole(path)

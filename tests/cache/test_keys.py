import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.cache.block import Block
from pomona.cache.keys import FORMAT_VERSION, Fingerprint, chain
from pomona.cache.layout import LARGEST_BLOCK, ArrayLayout, KVLayout, LayerLayout, plain
from pomona.cache.messages import BlockKey

LAYOUT = KVLayout((plain(2, 8, 8, "float16"), plain(2, 8, 8, "float16")))
STATE = LayerLayout("arrays", (ArrayLayout("state0", "float32", (1, 4, 16, 16)),))
PRINT = Fingerprint("weights", "tokenizer", LAYOUT, 16)
ROOT = PRINT.root("")
GOLDEN = [
    "aa77ff9bdc98d2f31279bfb74b6576be80dcb48de2f47a3f67ab015fbd44cce9",
    "07b66a142d3c96ad6d235f0695a84dd42b0155763e017ac2c622e52a68c0808e",
    "58268b1ff1dade53ca1819c787ba11202d1f1b763204533cdce8ee0c1246ea49",
]
"""The root above and the two blocks of tokens 0 to 31; files that stand on disks are named so."""

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_keys_are_the_same_in_every_version_and_process() -> None:
    assert [ROOT.hex(), *(key.hex() for key in chain(ROOT, range(40), 16))] == GOLDEN
    code = (
        "from pomona.cache.keys import *; from pomona.cache.layout import *;"
        "r = Fingerprint('weights', 'tokenizer', KVLayout((plain(2, 8, 8, 'float16'),) * 2), 16).root('');"
        "print(r.hex(), *(k.hex() for k in chain(r, range(40), 16)))"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert there.stdout.split() == GOLDEN


@pytest.mark.parametrize(
    "other",
    [
        PRINT._replace(weights="others"),
        PRINT._replace(tokenizer="other"),
        PRINT._replace(adapter="lora"),
        PRINT._replace(engine="mlx 2"),
        PRINT._replace(block_tokens=32),
        PRINT._replace(layout=KVLayout((plain(2, 8, 8, "bfloat16"),) * 2)),
        PRINT._replace(layout=LAYOUT._replace(layers=LAYOUT.layers[:1])),
        PRINT._replace(layout=LAYOUT._replace(layers=(plain(4, 8, 8, "float16"), LAYOUT.layers[1]))),
        PRINT._replace(layout=LAYOUT._replace(layers=(plain(2, 4, 8, "float16"), LAYOUT.layers[1]))),
        PRINT._replace(layout=LAYOUT._replace(layers=(plain(2, 8, 4, "float16"), LAYOUT.layers[1]))),
        *(
            PRINT._replace(layout=KVLayout((LAYOUT.layers[0]._replace(**change), LAYOUT.layers[1])))
            for change in ({"kind": "rotating"}, {"span": 1}, {"group_size": 1}, {"bits": 1}, {"arrays": ()})
        ),
        PRINT._replace(layout=KVLayout((STATE, *LAYOUT.layers))),
        PRINT._replace(weights="weightst", tokenizer="okenizer"),
        PRINT._replace(weights="", adapter="weights"),
    ],
)
def test_whatever_changes_the_bytes_changes_the_root(other: Fingerprint) -> None:
    assert other.root("") != ROOT


def test_another_format_version_has_another_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pomona.cache.keys.FORMAT_VERSION", FORMAT_VERSION + 1)
    assert PRINT.root("") != ROOT


def test_salts_share_no_block() -> None:
    mine, yours = PRINT.root("mine"), PRINT.root("yours")
    assert not set(chain(mine, range(64), 16)) & set(chain(yours, range(64), 16))


@given(TOKENS, st.integers(1, 8))
def test_a_longer_prompt_keeps_the_keys_of_its_prefix(tokens: list[int], size: int) -> None:
    keys = chain(ROOT, tokens, size)
    assert len(keys) == len(tokens) // size
    for cut in range(len(tokens)):
        assert chain(ROOT, tokens[:cut], size) == keys[: cut // size]


@given(TOKENS, st.integers(1, 4), st.data())
def test_a_changed_token_changes_its_block_and_all_behind_it(tokens: list[int], size: int, data: st.DataObject) -> None:
    keys = chain(ROOT, tokens, size)
    if not keys:
        return
    at = data.draw(st.integers(0, len(keys) * size - 1))
    changed = chain(ROOT, [*tokens[:at], tokens[at] ^ 1, *tokens[at + 1 :]], size)
    first = at // size
    assert changed[:first] == keys[:first]
    assert all(old != new for old, new in zip(keys[first:], changed[first:], strict=True))


def test_token_ids_beyond_32_bits_and_empty_blocks_are_refused() -> None:
    for token in (-1, 2**32):
        with pytest.raises(ValueError, match="token ids"):
            chain(ROOT, [token], 1)
    with pytest.raises(ValueError, match="at least 1"):
        chain(ROOT, [1], 0)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(1, 10**15 - 1))
def test_a_file_name_gives_its_block_back(key: bytes, parent: bytes, size: int) -> None:
    block = Block(BlockKey(key), BlockKey(parent), size)
    assert Block.parse(block.file_name) == (block if key != parent else None)
    assert len(block.file_name) <= 255


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".DS_Store",
        f"{'a' * 64}-{'b' * 64}-10.safetensors.tmp",
        f"{'A' * 64}-{'b' * 64}-10.safetensors",
        f"{'a' * 63}-{'b' * 64}-10.safetensors",
        f"{'a' * 64}-{'b' * 64}-0.safetensors",
        f"{'a' * 64}-{'b' * 64}-010.safetensors",
        f"{'a' * 64}-{'b' * 64}-10.safetensors\n",
        f"{'a' * 64}-{'a' * 64}-10.safetensors",
    ],
)
def test_other_names_are_no_blocks(name: str) -> None:
    assert Block.parse(name) is None


@pytest.mark.parametrize(
    ("layers", "block_bytes", "tokens"),
    [(30, 8 << 20, 128), (30, 46080 * 256, 256), (30, 46080 * 256 - 1, 128), (30, 1, 16), (1, 1 << 40, 512)],
)
def test_a_block_is_the_largest_power_of_two_that_fits(layers: int, block_bytes: int, tokens: int) -> None:
    layout = KVLayout((plain(3, 64, 64),) * layers)
    assert layout.token_bytes == 1536 * layers
    assert layout.block_tokens(block_bytes) == tokens


def test_a_block_with_a_large_state_grows_until_its_slices_weigh_as_much() -> None:
    slices = (plain(3, 64, 64),) * 30  # 46,080 bytes a token
    for tokens in (16, 64, 512):
        state = LayerLayout("arrays", (ArrayLayout("state0", "float16", (1, 46080 // 2 * tokens)),))
        layout = KVLayout((*slices, state))
        assert layout.state_bytes(7) == layout.state_bytes(10**6) == 46080 * tokens
        assert layout.block_tokens(0) == tokens
        assert layout.block_tokens(46080 * (tokens + 256)) == max(tokens, 256), "what the state leaves of the size"
    window = KVLayout((*slices, plain(3, 64, 64)._replace(kind="rotating", span=30 * 64)))
    assert [window.state_bytes(end) for end in (1, 64, 10**6)] == [1536, 1536 * 64, 46080 * 64]
    assert window.has_state
    assert window.token_bytes == 46080
    assert not KVLayout(slices).has_state


def test_a_model_of_state_alone_has_the_largest_blocks() -> None:
    assert KVLayout((STATE,)).block_tokens(1) == LARGEST_BLOCK

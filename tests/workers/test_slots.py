import random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, make_prompt_cache

from pomona.workers.slot_buffers import STEP
from pomona.workers.slots import SlotCache, SlotLengths
from tests.workers.engines import tiny, words

CLOSE = 1e-4
"""Two shapes of one float32 computation differ by roundings."""


class Solo:
    """One row on mlx-lm's own caches."""

    def __init__(self, model: Any, prompt: tuple[int, ...]) -> None:
        self.model = model
        self.caches: list[KVCache] = make_prompt_cache(model)
        self.feed(prompt)

    def feed(self, tokens: tuple[int, ...]) -> mx.array:
        logits: mx.array = self.model(mx.array([tokens]), cache=self.caches)[0]
        mx.eval(logits, [cache.state for cache in self.caches])
        return logits


class Slots:
    """Rows in slots, each with a solo row that is fed the same tokens."""

    def __init__(self) -> None:
        self.model = tiny().model
        self.shared = SlotLengths()
        self.caches = [SlotCache(self.shared) for _ in self.model.layers]
        self.solos: list[Solo] = []

    def join(self, prompt: tuple[int, ...]) -> None:
        solo = Solo(self.model, prompt) if prompt else Solo.__new__(Solo)
        if not prompt:
            solo.model, solo.caches = self.model, make_prompt_cache(self.model)
        for cache, own in zip(self.caches, solo.caches, strict=True):
            cache.join(own)
        self.shared.lengths.append(len(prompt))
        self.solos.append(solo)

    def keep(self, order: list[int]) -> None:
        for cache in self.caches:
            cache.keep(order)
        self.shared.lengths = [self.shared.lengths[index] for index in order]
        self.solos = [self.solos[index] for index in order]

    def forward(self, tokens: list[tuple[int, ...]]) -> mx.array:
        self.shared.begin()
        logits: mx.array = self.model(mx.array(tokens), cache=self.caches)
        self.shared.advance(len(tokens[0]))
        mx.eval(logits)
        return logits

    def step(self, source: random.Random, width: int = 1) -> None:
        """Feed each row tokens of its own; every row's logits are its solo run's."""
        tokens = [tuple(source.randrange(320) for _ in range(width)) for _ in self.solos]
        logits = self.forward(tokens)
        for index, solo in enumerate(self.solos):
            assert mx.allclose(logits[index], solo.feed(tokens[index]), atol=CLOSE, rtol=0).item()

    def buffers(self) -> list[np.ndarray]:
        return [np.array(array) for cache in self.caches for array in (cache.keys, cache.values) if array is not None]


@pytest.mark.parametrize("seed", range(4))
def test_rows_compute_what_they_compute_alone_whoever_joins_and_leaves(seed: int) -> None:
    source, slots = random.Random(seed), Slots()
    for _ in range(40):
        roll = source.random()
        if not slots.solos or (roll < 0.3 and len(slots.solos) < 6):
            slots.join(words(source.randrange(10**6), source.choice([0, 1, 5, 20, 60])))
        elif roll < 0.5:
            staying = source.sample(range(len(slots.solos)), source.randint(0, len(slots.solos)))
            slots.keep(staying)
        else:
            slots.step(source, source.choice([1, 1, 1, 2, 3]))


def test_rows_may_change_places() -> None:
    source, slots = random.Random(5), Slots()
    for length in (3, 17, 8):
        slots.join(words(length, length))
    for order in ([1, 0, 2], [2, 0, 1], [0, 1, 2], [2, 1, 0]):
        slots.keep(order)
        slots.step(source)


def test_buffers_grow_in_steps_and_keep_what_they_hold() -> None:
    source, slots = random.Random(6), Slots()
    slots.join(words(1, STEP - 2))
    slots.join(words(2, 10))
    for _ in range(4):
        slots.step(source)
    assert {buffer.shape[2] for buffer in slots.buffers()} == {2 * STEP}
    slots.join(words(3, 2 * STEP + 1))
    slots.step(source)
    assert {buffer.shape[2] for buffer in slots.buffers()} == {3 * STEP}
    assert slots.caches[0].nbytes == 2 * slots.buffers()[0].nbytes


def test_a_short_row_joins_a_long_one() -> None:
    source, slots = random.Random(9), Slots()
    slots.join(words(1, STEP + 40))
    slots.join(words(2, 5))
    assert {buffer.shape[::2] for buffer in slots.buffers()} == {(2, 2 * STEP)}
    slots.step(source)


def test_a_row_may_move_behind_one_that_holds_nothing_yet() -> None:
    source, slots = random.Random(10), Slots()
    slots.join(words(1, 5))
    slots.join(())
    slots.keep([1, 0])
    slots.step(source)


def test_buffers_are_freed_when_all_have_left_and_not_before() -> None:
    source, slots = random.Random(7), Slots()
    slots.join(words(1, 5))
    slots.join(words(2, 5))
    slots.keep([1])
    assert all(cache.nbytes for cache in slots.caches)
    slots.keep([])
    assert [(cache.keys, cache.values, cache.nbytes) for cache in slots.caches] == [(None, None, 0)] * 2
    slots.join(words(3, 9))
    slots.step(source)


def test_buffers_give_back_what_rows_that_left_have_needed_once_it_is_most_of_them() -> None:
    source, slots = random.Random(11), Slots()
    for length in (9, 7 * STEP - 1, 5, 7, STEP - 1):
        slots.join(words(length, length))
    slots.keep([0, 4, 2, 3])
    assert {buffer.shape[::2] for buffer in slots.buffers()} == {(4, STEP)}
    for _ in range(2):
        slots.step(source)
    assert {buffer.shape[::2] for buffer in slots.buffers()} == {(4, 2 * STEP)}
    slots.keep([3, 1])
    assert {buffer.shape[::2] for buffer in slots.buffers()} == {(4, 2 * STEP)}  # half of them is kept
    slots.keep([0])
    assert {buffer.shape[::2] for buffer in slots.buffers()} == {(1, STEP)}
    slots.step(source)


def test_room_for_the_next_token_stays() -> None:
    slots = Slots()
    slots.join(words(1, STEP))
    slots.join(words(2, 8 * STEP))
    slots.keep([0])
    assert {buffer.shape[::2] for buffer in slots.buffers()} == {(1, 2 * STEP)}


def test_what_lies_beyond_a_row_is_never_seen() -> None:
    """The rest of each slot, and slots that nobody has, are filled with numbers that would show."""
    slots, poisoned = Slots(), Slots()
    for each in (slots, poisoned):
        for length in (4, 30, 11, 25):
            each.join(words(length, length))
        each.keep([3, 1, 2])
    for cache in poisoned.caches:
        assert cache.keys is not None
        assert cache.values is not None
        for row in range(4):
            length = [*poisoned.shared.lengths, 0][row]
            cache.keys[row, :, length:] = 1e4
            cache.values[row, :, length:] = -1e4
    for width in (1, 2, 1):
        tokens = [words(row + 10 * width, width) for row in range(3)]
        assert mx.array_equal(slots.forward(tokens), poisoned.forward(tokens)).item()


def test_a_step_writes_one_place_in_each_row_and_nothing_else_that_a_row_holds() -> None:
    slots = Slots()
    for length in (4, 30, 11, 25):
        slots.join(words(length, length))
    slots.keep([0, 3, 2])
    before = slots.buffers()
    slots.forward([(5, 6)] * 3)
    for old, new in zip(before, slots.buffers(), strict=True):
        changed = np.argwhere((old[:3] != new[:3]).any(axis=(1, 3)))
        assert [tuple(place) for place in changed] == [(0, 4), (0, 5), (1, 25), (1, 26), (2, 11), (2, 12)]


def test_a_row_taken_out_is_a_copy_of_what_it_would_hold_alone() -> None:
    source, slots = random.Random(8), Slots()
    for length in (4, 30, 0):
        slots.join(words(length, length))
    empty = slots.caches[0].extract(2)
    assert (empty.keys, empty.offset) == (None, 0)
    slots.step(source)
    for index, solo in enumerate(slots.solos):
        taken = [cache.extract(index) for cache in slots.caches]
        held = [array for cache in taken for array in cache.state if isinstance(array, mx.array)]
        mx.eval(held)
        for own, other in zip(taken, solo.caches, strict=True):
            assert own.offset == other.offset
            assert own.keys is not None
            assert own.values is not None
            assert other.keys is not None
            assert other.values is not None
            assert mx.allclose(own.keys, other.keys[:, :, : other.offset], atol=CLOSE).item()
            assert mx.allclose(own.values, other.values[:, :, : other.offset], atol=CLOSE).item()
    copy = slots.caches[0].extract(0)
    kept = np.array(copy.keys)
    slots.step(source)
    assert np.array_equal(kept, np.array(copy.keys))


def test_buffers_have_the_dtype_of_what_is_written() -> None:
    slots = SlotLengths()
    cache = SlotCache(slots)
    slots.lengths.append(0)
    slots.begin()
    half = mx.ones((1, 2, 1, 4), dtype=mx.float16)
    keys, values = cache.update_and_fetch(half, 2 * half)
    assert (keys.dtype, values.dtype, keys.shape) == (mx.float16, mx.float16, (1, 2, 1, 4))
    assert (keys.tolist(), values.tolist()) == (half.tolist(), (2 * half).tolist())


def allowed(lengths: list[int], tokens: int, window: int | None) -> np.ndarray:
    """Brute force: which slot each query of each row may look at."""
    reach = max(lengths) + tokens
    mask = np.zeros((len(lengths), 1, tokens, reach), dtype=bool)
    for row, length in enumerate(lengths):
        for query in range(tokens):
            for slot in range(reach):
                distance = length + query - slot
                mask[row, 0, query, slot] = distance >= 0 and (window is None or distance < window)
    return mask


@pytest.mark.parametrize("window", [None, 1, 3, 6, 7, 40])
@pytest.mark.parametrize("lengths", [[0], [5], [6, 6], [0, 9, 4], [12, 12, 11]])
def test_masks_are_causal_within_each_row_and_its_window(lengths: list[int], window: int | None) -> None:
    shared = SlotLengths()
    cache = SlotCache(shared)
    shared.lengths = lengths
    shared.begin()
    assert cache.offset.tolist() == lengths
    for tokens in (1, 2, 4):
        wanted = allowed(lengths, tokens, window)
        mask = cache.make_mask(tokens, window_size=window)
        assert wanted.all() if mask is None else np.array_equal(np.array(mask), wanted)
        assert mask is not None or tokens == 1


def test_masks_follow_the_rows() -> None:
    shared = SlotLengths()
    shared.lengths = [2, 5]
    shared.begin()
    assert np.array_equal(np.array(shared.mask(1, None)), allowed([2, 5], 1, None))
    shared.advance(1)
    shared.begin()
    assert np.array_equal(np.array(shared.mask(1, None)), allowed([3, 6], 1, None))

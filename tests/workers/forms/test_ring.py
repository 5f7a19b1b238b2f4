import random

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import RotatingKVCache

from pomona.workers import layers
from pomona.workers.forms.ring import SLACK, RingCache
from pomona.workers.slot_buffers import STEP
from pomona.workers.slots import SlotLengths

WINDOW = 7
RING = WINDOW + SLACK


class Rows:
    """One layer; a token's key is its number and its row's, so that what lies where can be read off."""

    def __init__(self, window: int = WINDOW) -> None:
        self.shared = SlotLengths()
        self.ring = RingCache(self.shared, window)
        self.names: list[int] = []
        self._joined = 0

    def join(self, length: int, chunk: int = 3) -> None:
        """A row whose prompt was computed in chunks."""
        name = self._joined = self._joined + 1
        single = RotatingKVCache(self.ring.window)
        for start in range(0, length, chunk):
            kv = self._kv(name, range(start, min(length, start + chunk)))
            single.update_and_fetch(kv, -kv)
        self.ring.join(single)
        self.shared.lengths.append(length)
        self.names.append(name)

    @staticmethod
    def _kv(name: int, positions: range) -> mx.array:
        return mx.array([[[[1000.0 * name + position] * 2 for position in positions]] * 2])

    def forward(self, tokens: int, kept: int) -> list[list[list[float]]]:
        """What each query of each row looks at; then every row keeps the first `kept` tokens."""
        self.shared.begin()
        new = [
            self._kv(name, range(start, start + tokens))
            for name, start in zip(self.names, self.shared.starts, strict=True)
        ]
        kv = mx.concatenate(new)
        # What is refused later is marked, should anybody ever see it.
        marked = mx.where((mx.arange(tokens) >= kept)[None, None, :, None], kv + 0.5, kv)
        keys, values = self.ring.update_and_fetch(marked, -marked)
        mask = self.ring.make_mask(tokens)
        assert np.array_equal(np.array(keys), -np.array(values))
        assert keys.shape[2] <= self.ring.window + SLACK
        seen = np.ones((len(self.names), 1, tokens, keys.shape[2]), bool) if mask is None else np.array(mask)
        assert seen.shape == (len(self.names), 1, tokens, keys.shape[2])
        looked = [
            [sorted(np.array(keys)[row, 0, seen[row, 0, query], 0].tolist()) for query in range(tokens)]
            for row in range(len(self.names))
        ]
        self.shared.advance(kept)
        return looked

    def check(self, tokens: int, kept: int) -> None:
        starts = list(self.shared.lengths)
        for row, queries in enumerate(self.forward(tokens, kept)):
            for query, seen in enumerate(queries):
                position = starts[row] + query
                first = max(0, position + 1 - self.ring.window)
                wanted = [
                    1000.0 * self.names[row] + place + (0.5 if place >= starts[row] + kept else 0.0)
                    for place in range(first, position + 1)
                ]
                assert seen == wanted, (row, query, starts)

    def keep(self, order: list[int]) -> None:
        self.ring.keep(order)
        self.shared.lengths = [self.shared.lengths[index] for index in order]
        self.names = [self.names[index] for index in order]


@pytest.mark.parametrize("seed", range(3))
def test_every_query_sees_its_window_and_nothing_that_was_refused(seed: int) -> None:
    source, rows = random.Random(seed), Rows()
    for _ in range(120):
        roll = source.random()
        if not rows.names or (roll < 0.1 and len(rows.names) < 5):
            rows.join(source.choice([0, 1, 3, WINDOW - 1, WINDOW, WINDOW + 1, RING - 1, RING, RING + 3, 200]))
        elif roll < 0.15:
            rows.keep(source.sample(range(len(rows.names)), source.randint(0, len(rows.names))))
        else:
            tokens = source.choice([1, 1, 2, 3, 8, SLACK])
            rows.check(tokens, source.randint(1, tokens))


def test_rows_of_one_length_pass_the_end_of_the_ring_together() -> None:
    rows = Rows()
    for _ in range(3):
        rows.join(RING - 4)
    for _ in range(2 * RING):
        rows.check(3, 1)


@pytest.mark.parametrize("length", range(WINDOW - 2, WINDOW + 3))
def test_a_window_that_has_just_filled_lets_the_first_token_go(length: int) -> None:
    rows = Rows()
    rows.join(length)
    for _ in range(3):
        rows.check(1, 1)


@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, RING - 2, RING, 3 * RING + 5])
def test_a_row_taken_out_is_what_it_would_be_alone(length: int) -> None:
    rows = Rows()
    rows.join(2)
    rows.join(length)
    rows.check(SLACK, 2)
    rows.check(5, 1)
    alone = RotatingKVCache(WINDOW)
    for position in range(length + 3):
        kv = rows._kv(2, range(position, position + 1))
        alone.update_and_fetch(kv, -kv)
    taken = rows.ring.extract(1)
    assert (type(taken), taken.offset, taken.max_size, taken.keep) == (RotatingKVCache, length + 3, WINDOW, 0)
    assert layers.holds(taken, length + 3)
    for own, other in zip(layers.state(taken), layers.state(alone), strict=True):
        assert np.array_equal(np.array(own), np.array(other))
    kv = rows._kv(2, range(length + 3, length + 4))
    assert np.array_equal(np.sort(np.array(taken.update_and_fetch(kv, kv)[0])[0, 0, :, 0])[-WINDOW:],
                          np.sort(np.array(alone.update_and_fetch(kv, kv)[0])[0, 0, :, 0])[-WINDOW:])  # fmt: skip


def test_what_was_refused_is_not_taken_out() -> None:
    rows = Rows()
    rows.join(40)
    rows.check(SLACK, 1)
    assert np.array(rows.ring.extract(0).keys)[0, 0, :, 0].tolist() == [1000.0 + place for place in range(34, 41)]


def test_an_empty_row_is_taken_out_empty() -> None:
    rows = Rows()
    rows.join(0)
    assert rows.ring.extract(0).empty()
    rows.join(3)
    assert rows.ring.extract(0).empty()
    assert not rows.ring.extract(1).empty()


def test_more_tokens_than_the_ring_has_room_for_are_refused() -> None:
    rows = Rows()
    rows.join(9)
    rows.check(SLACK, SLACK)
    with pytest.raises(ValueError, match="33 tokens in one forward are more than a window's ring has room for: 32"):
        rows.forward(SLACK + 1, 1)


def test_what_a_row_came_with_is_not_written_to() -> None:
    rows, single = Rows(), RotatingKVCache(WINDOW)
    kv = rows._kv(1, range(WINDOW))
    single.update_and_fetch(kv, -kv)
    before = np.array(single.keys)
    rows.ring.join(single)
    rows.shared.lengths.append(WINDOW)
    rows.names.append(1)
    rows.check(4, 4)
    assert np.array_equal(before, np.array(single.keys))


def test_buffers_grow_up_to_the_ring_and_not_beyond() -> None:
    rows = Rows(2 * STEP)
    rows.join(5)
    rows.check(2, 2)
    assert rows.ring.keys is not None
    assert rows.ring.keys.shape[::2] == (1, STEP)
    rows.join(5 * STEP, chunk=300)
    rows.check(2, 2)
    assert rows.ring.keys.shape[::2] == (2, 2 * STEP + SLACK)
    assert rows.ring.nbytes == 2 * rows.ring.keys.nbytes
    rows.keep([])
    assert rows.ring.nbytes == 0


def test_rows_that_moved_between_a_forward_and_its_settling_keep_what_it_wrote() -> None:
    rows = Rows()
    for length in (3, 60, RING - 2):
        rows.join(length)
    rows.check(4, 4)
    rows.shared.lengths = [length - 4 for length in rows.shared.lengths]
    rows.shared.unsettled = 4
    rows.keep([2, 0])
    rows.shared.lengths = [length + 4 for length in rows.shared.lengths]
    rows.shared.unsettled = 0
    rows.check(2, 1)


def test_a_narrower_window_of_the_model_counts() -> None:
    rows = Rows()
    rows.join(50)
    rows.shared.begin()
    for window, seen in ((3, 3), (WINDOW, WINDOW), (99, WINDOW), (None, WINDOW)):
        mask = rows.ring.make_mask(2, window_size=window)
        assert mask is not None
        assert mask.sum(axis=-1).tolist() == [[[seen, seen]]]

"""KV of one row in buffers of its own: what a long row has, so that no short one pays for its length."""

import mlx.core as mx

GROWTH = 8
"""A full buffer grows by one part in so many, so that what it copies stays a small part of what it computed."""


class RowBuffers:
    """One layer's KV of one row, [1, heads, capacity, head_dim] each."""

    def __init__(self, keys: mx.array | None, values: mx.array | None) -> None:
        self.keys = keys
        self.values = values

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None or self.values is None else int(self.keys.nbytes + self.values.nbytes)

    def write(self, keys: mx.array, values: mx.array, at: int, step: int) -> None:
        """Put [1, heads, tokens, head_dim] behind the first `at` tokens; buffers have multiples of `step` tokens."""
        self.keys = _written(self.keys, keys, at, step)
        self.values = _written(self.values, values, at, step)


def _written(buffer: mx.array | None, new: mx.array, at: int, step: int) -> mx.array:
    stop = at + new.shape[2]
    if buffer is None or stop > buffer.shape[2]:
        capacity = -(-(stop + at // GROWTH) // step) * step
        rows, heads, _, size = new.shape
        held = [] if buffer is None else [buffer[:, :, :at]]
        room = mx.zeros((rows, heads, capacity - at, size), dtype=new.dtype)
        buffer = mx.concatenate([*held, room], axis=2) if held else room
    buffer[:, :, at:stop] = new
    return buffer

"""A model that wants to write a certain text, whatever it was made to write before."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

EAGER = 50.0
"""A logit per byte of what it wants to write; the end of sequence has one too, when it wants nothing more."""

Wish = Callable[[bytes], bytes]
"""What it would write next, all that it has written given, special tokens by their names; nothing is the end."""


class Willing:
    """Of one row at a time: its logits favour tokens that go on as it wishes, the longest most.

    The real model behind it keeps the caches as they would be.
    """

    def __init__(self, model: Any, pieces: Sequence[bytes], eos: int, wish: Wish) -> None:
        self._model = model
        self._pieces = pieces
        self._eos = eos
        self.wish = wish
        self.prompt = 0
        """Tokens of the prompt."""
        self._fed: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
        first = int(mx.array(cache[0].offset).reshape(-1)[0].item())
        logits = self._model(inputs, cache=cache)
        assert inputs.shape[0] == 1, "one row at a time"
        tokens: list[int] = inputs[0].tolist()  # type: ignore[assignment]
        rows = []
        for index, token in enumerate(tokens):
            self._fed[first + index] = token
            rows.append(self._row(first + index + 1, logits.shape[-1]))
        return mx.array([rows])

    def _row(self, length: int, size: int) -> list[float]:
        written = b"".join(self._pieces[self._fed[place]] for place in range(self.prompt, length))
        row = [-float(index) / size for index in range(size)]
        wanted = self.wish(written) if length >= self.prompt else b""
        for token, piece in enumerate(self._pieces[:size]):
            if piece and wanted.startswith(piece):
                row[token] = EAGER * len(piece)
        if not wanted:
            row[self._eos] = EAGER
        return row


def script(text: str, answer: str) -> Wish:
    """It wants to write `text`, which ends in `answer`; where it was made to write something else, it goes on with as
    much of the answer as is not written yet.
    """
    whole, end = text.encode(), answer.encode()

    def wish(written: bytes) -> bytes:
        if whole.startswith(written):
            return whole[len(written) :]
        done = next(size for size in range(len(end), -1, -1) if written.endswith(end[:size]))
        return end[done:]

    return wish

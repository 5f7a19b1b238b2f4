"""mlx-lm's own batch form of a kind of cache that nothing more is known about."""

from collections.abc import Sequence
from typing import Any

from pomona.workers.slots import SlotLengths


class Merged:
    """Rows join by `merge` and `extend`; no forward over it can be undone."""

    is_state = False
    overwrites = False
    widest = 1

    def __init__(self, shared: SlotLengths, kind: type) -> None:
        self._shared = shared
        self._batched: Any = None
        self.refusal = f"no forward over a {kind.__name__} can be undone"

    @property
    def as_cache(self) -> Any:
        return self._batched

    @property
    def nbytes(self) -> int:
        return 0 if self._batched is None else int(self._batched.nbytes)

    def join(self, single: Any) -> None:
        merged = type(single).merge([single])
        if self._batched is None:
            self._batched = merged
        else:
            self._batched.extend(merged)

    def keep(self, rows: list[int]) -> None:
        self._batched.filter(rows)

    def extract(self, index: int) -> Any:
        return self._batched.extract(index)

    def hold(self) -> None:
        """Raises ValueError: it is never asked to verify."""
        raise ValueError(self.refusal)

    def settle(self, whole: Sequence[bool]) -> None:
        """Raises ValueError: it is never asked to verify."""
        raise ValueError(self.refusal)

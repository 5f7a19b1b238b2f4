"""Several caches of one layer: the batch form of mlx-lm's `CacheList`."""

from collections.abc import Sequence

from mlx_lm.models.cache import CacheList

from pomona.workers.forms.form import Form


class Members:
    """A form for each member."""

    def __init__(self, members: Sequence[Form]) -> None:
        self._members = members

    @property
    def as_cache(self) -> CacheList:
        return CacheList(*(member.as_cache for member in self._members))

    @property
    def nbytes(self) -> int:
        return sum(member.nbytes for member in self._members)

    @property
    def refusal(self) -> str:
        return next((member.refusal for member in self._members if member.refusal), "")

    @property
    def is_state(self) -> bool:
        return any(member.is_state for member in self._members)

    @property
    def overwrites(self) -> bool:
        return all(member.overwrites for member in self._members)

    @property
    def widest(self) -> int | None:
        return min((member.widest for member in self._members if member.widest is not None), default=None)

    def join(self, single: CacheList) -> None:
        for member, own in zip(self._members, single.caches, strict=True):
            member.join(own)

    def keep(self, rows: list[int]) -> None:
        for member in self._members:
            member.keep(rows)

    def extract(self, index: int) -> CacheList:
        return CacheList(*(member.extract(index) for member in self._members))

    def hold(self) -> None:
        for member in self._members:
            member.hold()

    def settle(self, whole: Sequence[bool]) -> None:
        for member in self._members:
            member.settle(whole)

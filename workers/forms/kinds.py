"""Which form each kind of mlx-lm's caches has."""

from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from pomona.workers.forms.form import Form
from pomona.workers.forms.members import Members
from pomona.workers.forms.merged import Merged
from pomona.workers.forms.recurrent import RecurrentCache
from pomona.workers.forms.ring import RingCache
from pomona.workers.forms.solo import Solo
from pomona.workers.layers import leaves
from pomona.workers.slots import SlotCache, SlotLengths


def batchable(caches: Sequence[Any]) -> bool:
    """True if every layer's cache has a batch form."""
    return all(hasattr(cache, "merge") for cache in leaves(caches))


def forms_of(caches: Sequence[Any], shared: SlotLengths) -> list[Form]:
    """Forms without rows, for caches of these kinds; if not `batchable`, they take one row at a time."""
    alone = not batchable(caches)
    return [_form_of(cache, shared, alone) for cache in caches]


def _form_of(cache: Any, shared: SlotLengths, alone: bool) -> Form:
    if type(cache) is CacheList:
        return Members([_form_of(member, shared, alone) for member in cache.caches])
    if type(cache) is ArraysCache:
        return RecurrentCache(shared, len(cache.cache))
    if alone:
        return Solo(shared, cache)
    if type(cache) is KVCache:
        return SlotCache(shared)
    if type(cache) is RotatingKVCache and not cache.keep:
        return RingCache(shared, cache.max_size)
    return Merged(shared, type(cache))

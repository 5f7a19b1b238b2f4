from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ChunkedKVCache, KVCache, QuantizedKVCache, RotatingKVCache

from pomona.workers.forms.solo import Solo, cut
from pomona.workers.slots import SlotLengths


def filled(cache: Any, tokens: int) -> Any:
    cache.update_and_fetch(mx.ones((1, 2, tokens, 64)), mx.ones((1, 2, tokens, 64)))
    return cache


KINDS = (KVCache, QuantizedKVCache, lambda: ChunkedKVCache(99))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_cut_off_to_the_token_or_not_at_all(kind: Any) -> None:
    cache = filled(kind(), 9)
    cut(cache, 9)
    cut(cache, 5)
    assert cache.offset == 5
    cut(cache, 0)
    assert cache.offset == 0
    for tokens, length in ((4, 5), (4, -1)):
        cache = filled(kind(), tokens)
        with pytest.raises(ValueError, match=f"of 4 tokens cannot be cut to {length}"):
            cut(cache, length)
        assert cache.offset == 4


def test_what_has_gone_from_the_front_cannot_be_cut_back_to() -> None:
    cache = filled(ChunkedKVCache(4), 10)
    cache.maybe_trim_front()
    with pytest.raises(ValueError, match="could not be cut by 7"):
        cut(cache, 3)


def test_a_second_row_is_refused() -> None:
    shared = SlotLengths()
    form = Solo(shared, QuantizedKVCache())
    assert form.nbytes == 0
    own = filled(QuantizedKVCache(), 3)
    form.join(own)
    shared.lengths.append(3)
    assert form.as_cache is own
    assert form.nbytes == own.nbytes
    with pytest.raises(ValueError, match="a QuantizedKVCache takes one row at a time"):
        form.join(filled(QuantizedKVCache(), 3))


def test_a_row_is_taken_out_without_what_is_not_settled() -> None:
    shared = SlotLengths()
    form = Solo(shared, KVCache())
    own = filled(KVCache(), 3)
    form.join(own)
    shared.lengths.append(3)
    assert form.extract(0) is own
    form.hold()
    filled(own, 4)
    shared.unsettled = 4
    assert form.extract(0).offset == 3
    assert own.offset == 7
    shared.lengths, shared.unsettled = [5], 0
    form.settle([False])
    assert (own.offset, form.extract(0).offset) == (5, 5)


def test_kinds_that_nothing_can_be_cut_off_say_so() -> None:
    assert Solo(SlotLengths(), KVCache()).refusal == ""
    assert Solo(SlotLengths(), RotatingKVCache(4)).refusal == "tokens cannot be cut off a RotatingKVCache"

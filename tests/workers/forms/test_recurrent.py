import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache

from pomona.workers.forms.recurrent import RecurrentCache
from pomona.workers.slots import SlotLengths


def single(value: float | None) -> ArraysCache:
    """One row of two arrays; the second is of half precision."""
    cache = ArraysCache(2)
    if value is not None:
        cache.cache = [mx.full((1, 2, 3), value), mx.full((1, 4), -value, dtype=mx.float16)]
    return cache


def rows(*values: float | None) -> RecurrentCache:
    shared = SlotLengths()
    form = RecurrentCache(shared, 2)
    for value in values:
        form.join(single(value))
        shared.lengths.append(1)
    return form


def forward(form: RecurrentCache, add: float) -> None:
    for index, array in enumerate(form.cache):
        assert array is not None
        form[index] = array + add


def held(form: RecurrentCache) -> list[float]:
    """The value of each row; all of its numbers are of one."""
    first, second = form.cache
    assert first is not None
    assert second is not None
    assert second.dtype == mx.float16
    assert np.array_equal(np.array(first[:, 0, 0]), -np.array(second[:, 0]).astype(np.float32))
    return first[:, 1, 2].tolist()  # type: ignore[return-value]


def test_rows_join_and_leave_and_unset_state_is_zero() -> None:
    form = rows(None, 3.0, 4.0, None)
    assert held(form) == [0, 3, 4, 0]
    form.keep([3, 1])
    assert held(form) == [0, 3]
    assert form.nbytes == 2 * (6 * 4 + 4 * 2)
    assert rows(None, None).cache == [None, None]
    assert rows(None, None).nbytes == 0


def test_rows_that_keep_all_take_the_new_state_and_the_others_go_back() -> None:
    form = rows(1.0, 2.0, 3.0)
    for whole, expected in (([True, False, True], [11, 2, 13]), ([False] * 3, [11, 2, 13]), ([True] * 3, [21, 12, 23])):
        form.hold()
        form.cache = [None if array is None else mx.where(array > 0, array + 10, array - 10) for array in form.cache]
        form.settle(whole)
        assert held(form) == expected


def test_state_that_was_not_there_before_goes_back_to_zero() -> None:
    form = rows(None, None)
    form.hold()
    form.cache = [mx.ones((2, 2, 3)), -mx.ones((2, 4), dtype=mx.float16)]
    form.settle([False, True])
    assert held(form) == [0, 1]


def test_rows_may_join_leave_and_be_taken_out_before_the_forward_is_settled() -> None:
    form = rows(1.0, 2.0, 3.0)
    form.hold()
    form.cache = [None if array is None else array * 10 for array in form.cache]
    form.join(single(5.0))
    form._shared.lengths.append(1)
    form.keep([3, 1, 2])
    taken = form.extract(1)
    assert type(taken) is ArraysCache
    assert [np.unique(np.array(array)).tolist() for array in taken.cache] == [[2], [-2]]
    form.settle([True, False, True])
    assert held(form) == [5, 2, 30]
    assert np.unique(np.array(form.extract(2).cache[0])).tolist() == [30]


def test_what_is_taken_out_or_joined_shares_nothing_that_is_written_to() -> None:
    came = single(2.0)
    form = rows()
    form.join(came)
    form._shared.lengths.append(1)
    taken = form.extract(0)
    form.hold()
    forward(form, 5.0)
    form.settle([True])
    assert [np.unique(np.array(cache.cache[0])).tolist() for cache in (came, taken)] == [[2], [2]]


def test_only_where_rows_are_padded_the_model_is_told_their_lengths() -> None:
    form = rows(1.0, 2.0)
    form._shared.begin()
    assert (form.lengths, form.make_mask(2)) == (None, None)
    form._shared.begin(fed=[2, 1])
    assert form.lengths is not None
    assert form.lengths.tolist() == [2, 1]
    form.advance(2)
    assert form.make_mask(2).tolist() == [[True, True], [True, False]]


def test_a_forward_that_was_not_held_cannot_be_settled() -> None:
    form = rows(1.0)
    with pytest.raises(ValueError, match="was not held"):
        form.settle([True])
    form.hold()
    form.settle([True])
    with pytest.raises(ValueError, match="was not held"):
        form.settle([False])

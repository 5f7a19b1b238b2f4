"""Forwards that verify: what they cost, what they leave behind, and which are refused."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache

from pomona.workers.forms.kinds import batchable
from pomona.workers.forms.members import Members
from pomona.workers.forms.probe import verify_fault
from pomona.workers.forms.ring import SLACK
from pomona.workers.row_caches import MOST_UNREAD, RowCaches
from pomona.workers.slots import SlotCache, SlotLengths
from tests.workers.engines import words
from tests.workers.families import model_of
from tests.workers.lone_cache import LoneCaches


class Counted:
    """A model, and the tokens of each of its forwards."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.forwards: list[list[list[int]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any) -> Any:
        self.forwards.append(inputs.tolist())  # type: ignore[arg-type]  # two-dimensional
        return self._model(inputs, cache=cache)


def rows_of(model: Any, *lengths: int, long: int | None = None) -> RowCaches:
    rows = RowCaches(model, long)
    for length in lengths:
        caches = make_prompt_cache(model)
        if length:
            model(mx.array([words(length, length)]), cache=caches)
        rows.join(caches, length)
    return rows


def test_unread_tokens_are_fed_in_front_of_the_next_ones() -> None:
    model = Counted(model_of("hybrid"))
    rows = rows_of(model, 5, 9, 2)
    model.forwards.clear()
    rows.verify([[10, 11, 12], [20], [30, 31]])
    assert model.forwards.pop() == [[10, 11, 12], [20, 0, 0], [30, 31, 0]]
    assert rows.columns == [0, 0, 0]
    rows.settle([2, 1, 2])
    assert rows.shared.lengths == [5, 10, 4]
    assert rows.verify([[13], [21, 22], [32]]).shape[0] == 4
    assert model.forwards.pop() == [[10, 11, 13], [21, 22, 0], [32, 0, 0]]
    assert rows.columns == [2, 0, 0]
    rows.settle([1, 1, 1])
    assert rows.shared.lengths == [8, 10, 5]
    assert rows.forward(mx.array([14, 23, 33])).shape[0] == 3
    assert model.forwards.pop() == [[14, 0], [21, 23], [33, 0]]
    assert rows.columns == [0, 1, 0]
    assert (rows.shared.lengths, rows.shared.unsettled) == ([9, 12, 6], 0)
    rows.forward(mx.array([15, 24, 34]))
    assert model.forwards.pop() == [[15], [24], [34]]


def test_many_unread_tokens_get_a_forward_of_their_own() -> None:
    model = Counted(model_of("recurrent"))
    rows = rows_of(model, 5, 7)
    model.forwards.clear()
    first = list(range(10, 10 + MOST_UNREAD))
    rows.verify([[*first, 99], [50]])
    rows.settle([MOST_UNREAD, 1])
    rows.verify([[60, 61], [51]])  # as many as may be fed along
    assert model.forwards[1:] == [[[*first, 60, 61], [51, *[0] * (MOST_UNREAD + 1)]]]
    rows.settle([1, 1])
    model.forwards.clear()
    rows.verify([[62], [52]])
    assert model.forwards == [[[*first, 60], [0] * (MOST_UNREAD + 1)], [[62], [52]]]
    assert rows.columns == [0, 0]
    rows.settle([1, 1])
    assert rows.shared.lengths == [5 + MOST_UNREAD + 2, 10]


def test_rows_that_have_nothing_unread_wait_for_the_others() -> None:
    """In no forward of a single token, which tells models nothing of padding."""
    model = Counted(model_of("hybrid"))
    rows = rows_of(model, 5, 7)
    rows.verify([[1, 2], [3]])
    rows.settle([1, 1])
    model.forwards.clear()
    rows.read()
    assert model.forwards == [[[1, 0], [0, 0]]]
    assert rows.shared.lengths == [6, 8]
    rows.read()
    assert len(model.forwards) == 1


def test_what_rows_fed_moves_with_them() -> None:
    rows = rows_of(model_of("hybrid"), 5, 6, 7)
    rows.verify([[1], [2, 3], [4, 5, 6]])
    rows.keep([2, 1])
    rows.settle([3, 1])
    assert rows.shared.lengths == [10, 6]
    rows.keep([1, 0])
    assert rows.forward(mx.array([9, 8])).shape[0] == 2
    assert (rows.columns, rows.shared.lengths) == ([1, 0], [8, 11])


def test_plain_rows_never_feed_a_token_twice() -> None:
    model = Counted(model_of("wide window"))
    rows = rows_of(model, 5, 9)
    for _ in range(5):
        rows.verify([[10, 11, 12], [20, 21]])
        rows.settle([1, 2])
        assert rows.columns == [0, 0]
    assert rows.shared.lengths == [10, 19]


def test_what_is_verified_must_be_settled_before_the_next_forward() -> None:
    rows = rows_of(model_of("plain"), 5)
    rows.settle([0])  # nothing was fed
    rows.verify([[1, 2]])
    for forward in (lambda: rows.verify([[1]]), lambda: rows.forward(mx.array([1]))):
        with pytest.raises(ValueError, match="not settled"):
            forward()
    for count in (0, 3, -1):
        with pytest.raises(ValueError, match=f"row 0 keeps {count} of 2 tokens that it fed"):
            rows.settle([count])
    rows.settle([1])
    with pytest.raises(ValueError, match="nothing was fed"):
        rows.settle([1])
    assert rows.shared.lengths == [6]


def test_a_row_that_joined_since_the_forward_keeps_nothing_of_it() -> None:
    rows = rows_of(model_of("hybrid"), 5, 6)
    rows.verify([[1, 2], [3]])
    caches = make_prompt_cache(model_of("hybrid"))
    rows.join(caches, 0)
    with pytest.raises(ValueError, match="row 2 keeps 1 of 0"):
        rows.settle([1, 1, 1])
    rows.settle([1, 1, 0])
    assert rows.shared.lengths == [5, 7, 0]


def buffers(rows: RowCaches) -> list[mx.array]:
    """KV of unbounded length, in slots and apart."""
    forms = [form for form in rows.forms if isinstance(form, SlotCache)]
    pairs = [(each.keys, each.values) for form in forms for each in (form, *form.apart)]
    return [array for pair in pairs for array in pair if array is not None]


@pytest.mark.parametrize(("family", "long"), [("plain", None), ("plain", 100), ("plain", 1350), ("wide window", None)])
def test_a_commit_copies_no_kv(family: str, long: int | None) -> None:
    """What rows hold stays where it is."""
    rows = rows_of(model_of(family), 1500, 1300, long=long)
    for _ in range(2):  # the first makes room for what is written
        rows.verify([[1, 2, 3], [4]])
        mx.eval(buffers(rows))
        held = buffers(rows)
        mx.reset_peak_memory()
        rows.settle([2, 1])
        mx.eval(held)
        assert mx.get_peak_memory() == 0, "something was allocated"
        assert all(own is other for own, other in zip(held, buffers(rows), strict=True))


@pytest.mark.parametrize("apart", [0, 1, 2])
def test_a_forward_writes_the_tokens_that_are_fed_and_copies_none_that_are_held(apart: int) -> None:
    shared = SlotLengths()
    form = SlotCache(shared)
    for index, length in enumerate((1300, 1500)):
        single = KVCache()
        single.update_and_fetch(mx.ones((1, 2, length, 64)), mx.ones((1, 2, length, 64)))
        (form.join_apart if index >= 2 - apart else form.join)(single)
        shared.lengths.append(length)
        shared.apart += index >= 2 - apart
    for step in range(3):
        new = mx.ones((2, 2, 3, 64))
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        shared.begin()
        form.update_and_fetch(new, new)
        form.fetched = None
        mx.eval([array for each in (form, *form.apart) for array in (each.keys, each.values) if array is not None])
        if step:  # the first makes room for what is written
            assert mx.get_peak_memory() - before < 100_000 < form.nbytes / 30
        shared.lengths = [shared.lengths[0] + 1, shared.lengths[1] + 2]


@pytest.mark.parametrize(
    ("family", "widest"),
    [("plain", None), ("wide window", SLACK), ("hybrid", None), ("list", None), ("chunked", None), ("quantized", None)],
)
def test_every_family_verifies(family: str, widest: int | None) -> None:
    rows = RowCaches(model_of(family), None)
    assert (rows.refusal, rows.widest) == ("", widest)
    assert verify_fault(model_of(family)) == ""


class Asking:
    """A model that asks for caches of other kinds."""

    def __init__(self, model: Any, *kinds: Any) -> None:
        self._model = model
        self._kinds = kinds

    def make_cache(self) -> list[Any]:
        return [kind() for kind in self._kinds]

    def __call__(self, inputs: mx.array, cache: list[Any]) -> Any:
        return self._model(inputs, cache=cache)


def test_kinds_that_cannot_go_back_say_so() -> None:
    plain = model_of("plain")
    kept = Asking(plain, KVCache, lambda: RotatingKVCache(9, keep=2))
    assert RowCaches(kept, None).refusal == "no forward over a RotatingKVCache can be undone"
    assert RowCaches(LoneCaches(plain), None).refusal == "tokens cannot be cut off a LoneCache"
    mixed = Asking(plain, QuantizedKVCache, lambda: RotatingKVCache(9))
    assert RowCaches(mixed, None).refusal == "tokens cannot be cut off a RotatingKVCache"


def test_state_and_a_window_bound_what_is_fed_together() -> None:
    both = Asking(model_of("plain"), lambda: CacheList(ArraysCache(1), RotatingKVCache(9)), KVCache)
    rows = RowCaches(both, None)
    assert rows.widest == SLACK - MOST_UNREAD
    (members, _) = rows.forms
    assert isinstance(members, Members)
    assert (members.is_state, members.overwrites, members.widest, members.refusal) == (True, False, SLACK, "")
    assert not batchable([CacheList(KVCache(), QuantizedKVCache())])
    assert batchable([CacheList(KVCache(), ArraysCache(2))])


class Careless:
    """A model that does not look at which of its tokens are padding, or that forgets nothing."""

    def __init__(self, model: Any, wrong: str) -> None:
        self._model = model
        self._wrong = wrong

    def make_cache(self) -> list[Any]:
        return make_prompt_cache(self._model)

    def __call__(self, inputs: mx.array, cache: list[Any]) -> Any:
        if self._wrong == "lengths":
            for form in cache:
                if hasattr(form, "_shared"):
                    form._shared.fed = None
        logits = self._model(inputs, cache=cache)
        match self._wrong:
            case "nan":
                return logits * mx.nan
            case "shape" if inputs.shape[0] > 1:
                raise IndexError("too many rows")
            case "columns" if inputs.shape[0] > 1:
                return logits[:, ::-1]
            case _:
                return logits


@pytest.mark.parametrize(
    ("family", "wrong", "reason"),
    [
        ("state without lengths", "", "the model computes something else behind refused drafts: its logits differ by"),
        ("padding in its state", "", "the model computes something else behind refused drafts: its logits differ by"),
        ("recurrent", "lengths", "the model computes something else behind refused drafts: its logits differ by"),
        ("hybrid", "lengths", "the model computes something else behind refused drafts: its logits differ by"),
        ("plain", "columns", "the model computes something else behind padding: its logits differ by"),
        ("plain", "nan", "the model computes something else behind padding: its logits differ by nan%"),
        ("plain", "shape", "a forward that verifies drafts fails: IndexError: too many rows"),
        ("plain", "", ""),
    ],
)
def test_a_model_that_computes_something_else_is_found_out(family: str, wrong: str, reason: str) -> None:
    fault = verify_fault(Careless(model_of(family), wrong))
    assert fault.startswith(reason)
    assert bool(fault) is bool(reason)

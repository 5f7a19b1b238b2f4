"""Whole answers of engines that draft, by the tens of thousands: they have the law that enumeration gives them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx
import pytest

from pomona.config import Method
from pomona.workers.messages import Sampling, Speculation
from pomona.workers.sampling import verify
from tests.workers.speculation.fit import fit
from tests.workers.speculation.ten_tokens import (
    CELLS,
    LENGTH,
    MIXED,
    PAIR,
    drafting,
    law_of_answers,
    model_of,
    sampled,
)

LEAST = 0.001
BIAS = 0.02

Record = Callable[[str, object], None]


class Run(NamedTuple):
    width: int
    """Rows at once."""
    laws: Sequence[Sampling]
    """Of the rows, in turn."""
    answers: int


FEW = Run(5, MIXED, 200)
ALONE = Run(1, PAIR, 3_500)
BESIDE = Run(5, MIXED, 7_000)
KEEN = Run(40, PAIR, 20_000)
"""Enough to see a bias of a fiftieth in what a draft model drafts."""
DRAFTED = [family for family, method in CELLS if method == "draft"]


def measured(family: str, method: Method, run: Run, record_property: Record) -> float:
    """The least p among the laws, times their number (Bonferroni)."""
    speculation = Speculation(method=method, depth=LENGTH - 1)
    told = sampled(drafting(family, method), speculation, run.width, run.laws, run.answers)
    assert 0 < told.accepted < told.tested
    fits = [
        fit(counts, law_of_answers(model_of(family), law)) for counts, law in zip(told.counts, run.laws, strict=True)
    ]
    record_property("chi-square", [f"{each.distance:.1f} of {each.freedom}, p = {each.p:.2g}" for each in fits])
    record_property("drafts", f"{told.accepted} of {told.tested} accepted in {run.answers} answers")
    return min(1.0, len(fits) * min(each.p for each in fits))


@pytest.mark.parametrize(
    ("family", "method"), [("llama", "draft"), ("gemma 3", "layers"), ("hybrid", "mtp"), ("hybrid", "ngram")]
)
def test_answers_of_mixed_rows_have_their_law(family: str, method: Method, record_property: Record) -> None:
    assert measured(family, method, FEW, record_property) > LEAST


def test_answers_without_drafts_have_it_too() -> None:
    told = sampled(drafting("hybrid", "ngram"), Speculation(method="off"), *FEW)
    assert told.tested == 0
    fits = [
        fit(counts, law_of_answers(model_of("hybrid"), law)) for counts, law in zip(told.counts, FEW.laws, strict=True)
    ]
    assert min(each.p for each in fits) > LEAST / len(fits)


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("run", [ALONE, BESIDE], ids=["alone", "beside"])
@pytest.mark.parametrize(("family", "method"), CELLS)
def test_thousands_of_answers_have_their_law(family: str, method: Method, run: Run, record_property: Record) -> None:
    assert measured(family, method, run, record_property) > LEAST


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("family", DRAFTED)
def test_so_many_answers_that_a_small_bias_would_be_seen_have_their_law(family: str, record_property: Record) -> None:
    assert measured(family, "draft", KEEN, record_property) > LEAST


acceptances, residuals = verify.acceptances, verify.residuals


def lenient(p: mx.array, q: mx.array, tokens: mx.array) -> tuple[mx.array, mx.array]:
    """Drafts are kept more often, by a fiftieth."""
    acceptance, possible = acceptances(p, q, tokens)
    return mx.minimum(acceptance * (1 + BIAS), 1), possible


def leaning(p: mx.array, q: mx.array) -> mx.array:
    """A fiftieth of the residual goes from its likeliest token to another one that the law allows."""
    left = residuals(p, q)
    left = left / left.sum(axis=-1, keepdims=True)
    ids = mx.arange(p.shape[-1])
    likeliest = ids == mx.argmax(left, axis=-1, keepdims=True)
    others = mx.where(likeliest, 0, p)
    other = ids == mx.argmax(others, axis=-1, keepdims=True)
    moved = mx.where(others.max(axis=-1, keepdims=True) > 0, BIAS, 0.0)
    return left + moved * (other.astype(mx.float32) - likeliest.astype(mx.float32))


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("name", "biased"), [("acceptances", lenient), ("residuals", leaning)])
@pytest.mark.parametrize("family", DRAFTED)
def test_a_small_bias_is_seen(
    family: str,
    name: str,
    biased: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Record,
) -> None:
    monkeypatch.setattr(verify, name, biased)
    assert measured(family, "draft", KEEN, record_property) < LEAST

"""Batches of each width: what a row gets, and how many forwards that takes, does not depend on how many there are."""

from functools import cache

import pytest

from pomona.workers.messages import Request
from tests.workers.engines import Outcome, ask, make_engine, run, solo, tiny, words
from tests.workers.faulty_models import Watched

WIDTHS = range(1, 10)
TOKENS = 16


def row(index: int) -> Request:
    """Prompts of very different length, each with a seed of its own."""
    return ask(
        f"r{index}",
        words(index, 3 + 31 * (index % 5) + index),
        sampling={"seed": index, "temperature": 1.0 if index % 2 else 0.0},
        max_tokens=TOKENS,
        ignore_eos=True,
    )


@cache
def alone(family: str, index: int) -> Outcome:
    return solo(tiny(family), row(index))


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next"])
@pytest.mark.parametrize("width", WIDTHS)
def test_each_row_of_a_batch_of_any_width_gets_what_it_gets_alone(family: str, width: int) -> None:
    engine = make_engine(tiny(family), max_running=width, prefill_chunk=2048, stall_s=600.0)
    widest: list[int] = []
    outcomes = run(
        engine, [row(index) for index in range(width)], before_step=lambda step: widest.append(engine.stats().running)
    )
    assert max(widest) == width
    assert outcomes == {f"r{index}": alone(family, index) for index in range(width)}


def test_a_row_more_takes_no_forward_more() -> None:
    counted = []
    for width in WIDTHS:
        model = Watched(tiny().model)
        engine = make_engine(tiny(), max_running=width, prefill_chunk=4096, stall_s=600.0, model=model)
        model.widths.clear()
        run(engine, [row(index) for index in range(width)])
        counted.append(len(model.widths))
    assert counted == [1 + TOKENS] * len(WIDTHS)

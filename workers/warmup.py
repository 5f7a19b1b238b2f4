"""Runs every path of the engine once, so that no client pays for a first use, and measures what prefill costs."""

from collections.abc import Callable

from pomona.workers.engine import Engine
from pomona.workers.messages import Limits, Request, RequestId, Sampling

LAWS = (
    Sampling(seed=0, temperature=0.0),
    Sampling(
        seed=1,
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        min_p=0.01,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={1: 0.5},
    ),
)
"""One row that is greedy, and one with every filter and penalty."""

SIZES = (17, 129, 33, 97)
"""Prompt tokens of the calibration: chunks of different sizes draw the line of their cost."""


def warm_up(engine: Engine, vocabulary_size: int, progress: Callable[[str], None]) -> None:
    """Leaves the engine idle, its counts at zero and its memory of prompts empty."""
    progress("warming up")
    for index, sampling in enumerate(LAWS):
        engine.assign(_request(index, 64 >> index, vocabulary_size, sampling, max_tokens=4))
    _finish(engine)
    engine.forget_costs()  # first uses are slow
    for index, size in enumerate(SIZES):
        engine.assign(_request(index, size, vocabulary_size, LAWS[0], max_tokens=0))
        _finish(engine)
    engine.calibrate()
    engine.settle()


def _request(index: int, prompt_tokens: int, vocabulary_size: int, sampling: Sampling, max_tokens: int) -> Request:
    return Request(
        id=RequestId(f"warm-up-{index}"),
        model="",
        prompt=tuple(token % vocabulary_size for token in range(1, prompt_tokens + 1)),
        sampling=sampling,
        limits=Limits(max_tokens=max_tokens, ignore_eos=True),
        logprobs=2 * index,
        cache_salt=f"warm-up-{prompt_tokens}",
    )


def _finish(engine: Engine) -> None:
    while engine.busy:
        engine.step()

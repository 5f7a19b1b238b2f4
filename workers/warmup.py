"""Runs every path of the engine once, so that no client pays for a first use, and measures the prefill rate."""

from collections.abc import Callable

from pomona.workers.engine import Engine
from pomona.workers.messages import Limits, Request, RequestId, Sampling

PROMPT_TOKENS = 64


def warm_up(engine: Engine, vocabulary_size: int, progress: Callable[[str], None]) -> None:
    """Two rows of different length, one greedy and one with every filter and penalty; the engine is idle afterwards."""
    progress("warming up")
    prompt = tuple(token % vocabulary_size for token in range(1, PROMPT_TOKENS + 1))
    laws = (
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
    for index, sampling in enumerate(laws):
        engine.assign(
            Request(
                id=RequestId(f"warm-up-{index}"),
                model="",
                prompt=prompt[: PROMPT_TOKENS >> (2 * index)],
                sampling=sampling,
                limits=Limits(max_tokens=4, ignore_eos=True),
                logprobs=2 * index,
                cache_salt="warm-up",
            )
        )
    while engine.busy:
        engine.step()
    engine.settle()

"""Engines over tiny models, and what came out of them."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import mlx.core as mx

from pomona.cache.layout import KVLayout
from pomona.cache.messages import BlockKey
from pomona.runtime.wire import replace
from pomona.workers.engine import Engine, EngineLimits
from pomona.workers.messages import Finish, Limits, PositionLogprobs, Request, RequestId, Sampling, TokenEvent
from pomona.workers.models.load import load
from pomona.workers.prefix import PrefixStore
from pomona.workers.recent import RecentPrefixes
from pomona.workers.vocabulary import Vocabulary
from tests.support.tiny_model import build_tiny_model

WINDOW = 16
"""Tokens that the sliding layers of the tiny gemma3_text see."""

MAX_STEPS = 5000
"""More than any test needs: an engine that is still busy hangs."""


GREEDY = Sampling(seed=0, temperature=0.0)


class Loaded(NamedTuple):
    model: Any
    vocabulary: Vocabulary
    eos: frozenset[int]


@cache
def tiny(family: str = "llama") -> Loaded:
    with TemporaryDirectory() as folder:
        model, tokenizer = load(build_tiny_model(Path(folder) / family, family, window=WINDOW))
    return Loaded(model, Vocabulary(tokenizer), frozenset(tokenizer.eos_token_ids))


def with_a_hole(token: int) -> Loaded:
    """The tiny llama, for which `token` is no number: what it and all behind it leave in the caches is none either."""
    loaded = tiny.__wrapped__()
    embedding = loaded.model.model.embed_tokens
    embedding.weight[token] = mx.nan
    return loaded


def in_memory(ram_bytes: int) -> PrefixStore:
    """A store without a disk; it keeps recent KV in so many bytes."""
    root = BlockKey(b"root")
    return PrefixStore(None, lambda salt: root, KVLayout(()), 1, RecentPrefixes(ram_bytes))


def make_engine(
    loaded: Loaded,
    *,
    max_running: int = 8,
    prefill_chunk: int = 64,
    stall_s: float = 0.0,
    model: Any = None,
    prefixes: PrefixStore | None = None,
) -> Engine:
    """With `stall_s` 0 a step prefills one chunk of 16 tokens at most, whatever the clock says."""
    return Engine(
        loaded.model if model is None else model,
        loaded.vocabulary,
        loaded.eos,
        EngineLimits(max_running, prefill_chunk, stall_s),
        in_memory(0) if prefixes is None else prefixes,
    )


class Outcome:
    """What a client has of one request; refuses events that leave a gap, come twice or follow the end."""

    def __init__(self, committed: Sequence[int] = ()) -> None:
        self.tokens = list(committed)
        self.text = ""
        self.logprobs: list[PositionLogprobs] = []
        self.finish: Finish | None = None

    def take(self, event: TokenEvent) -> None:
        assert self.finish is None
        assert event.position == len(self.tokens)
        self.tokens += event.tokens
        self.text += "".join(delta.text for delta in event.deltas)
        self.logprobs += event.logprobs
        self.finish = event.finish

    def __eq__(self, other: object) -> bool:
        """Equal to the client; which prompt tokens were shared is none of its concern."""
        return isinstance(other, Outcome) and self._seen() == other._seen()

    __hash__ = None  # type: ignore[assignment]

    def _seen(self) -> tuple[object, ...]:
        finish = self.finish and replace(self.finish, usage=replace(self.finish.usage, cached_tokens=0))
        listed = [
            (entry.chosen.token, *(top.token for top in entry.top)) for entry in self.logprobs
        ]  # the values may differ by a rounding
        return self.tokens, self.text, listed, finish

    def __repr__(self) -> str:
        return repr(self._seen())


def steps(engine: Engine) -> Iterator[list[TokenEvent]]:
    """One step after the other until the engine is idle."""
    for _ in range(MAX_STEPS):
        if not engine.busy:
            return
        yield engine.step()
    raise AssertionError("the engine is still busy")


def run(
    engine: Engine,
    requests: Iterable[Request],
    *,
    every: int = 0,
    before_step: Callable[[int], None] = lambda step: None,
) -> dict[str, Outcome]:
    """All requests at once, or one more at each `every` steps; until all have ended."""
    waiting = list(requests)
    outcomes = {request.id: Outcome(request.committed) for request in waiting}
    for step in range(MAX_STEPS):
        while waiting and (every == 0 or step % every == 0):
            engine.assign(waiting.pop(0))
            if every:
                break
        if not waiting and not engine.busy:
            return {str(name): outcome for name, outcome in outcomes.items()}
        before_step(step)
        for event in engine.step():
            outcomes[event.id].take(event)
    raise AssertionError("the engine is still busy")


def solo(loaded: Loaded, request: Request, **settings: Any) -> Outcome:
    """The request alone in a fresh engine."""
    return run(make_engine(loaded, **settings), [request])[request.id]


def ask(
    name: str,
    prompt: Sequence[int],
    *,
    sampling: Sampling | Mapping[str, Any] | None = None,
    logprobs: int | None = None,
    committed: Sequence[int] = (),
    salt: str = "",
    **limits: Any,
) -> Request:
    """Greedy and 8 tokens, unless told otherwise."""
    law = (
        sampling if isinstance(sampling, Sampling) else Sampling(**{"seed": 0, "temperature": 0.0, **(sampling or {})})
    )
    return Request(
        id=RequestId(name),
        model="tiny",
        prompt=tuple(prompt),
        sampling=law,
        limits=Limits(**{"max_tokens": 8, **limits}),
        logprobs=logprobs,
        committed=tuple(committed),
        cache_salt=salt,
    )


def words(seed: int, length: int) -> tuple[int, ...]:
    """A prompt without special tokens."""
    source = random.Random(seed)
    return tuple(source.randrange(3, 320) for _ in range(length))


def any_request(seed: int, *, longest_prompt: int = 60, longest_answer: int = 30) -> Request:
    """Different samplers, seeds, stops and lengths; the same one for the same seed."""
    source = random.Random(seed)
    return ask(
        f"r{seed}",
        words(seed, source.randint(1, longest_prompt)),
        sampling=Sampling(
            seed=seed,
            temperature=source.choice([0.0, 0.7, 1.0, 1.4]),
            top_p=source.choice([1.0, 1.0, 0.9]),
            top_k=source.choice([0, 0, 12]),
            min_p=source.choice([0.0, 0.0, 0.05]),
            repetition_penalty=source.choice([1.0, 1.0, 1.2]),
            presence_penalty=source.choice([0.0, 0.0, 0.5]),
            frequency_penalty=source.choice([0.0, 0.0, 0.3]),
            logit_bias={source.randrange(320): source.uniform(-9, 9)} if source.random() < 0.3 else {},
        ),
        logprobs=source.choice([None, 0, 2, 5]),
        max_tokens=source.randint(1, longest_answer),
        min_tokens=source.choice([0, 0, 4]),
        stop=source.choice([(), (), ("e", "an"), (" ",)]),
        stop_token_ids=source.choice([(), (), (40, 50)]),
        ignore_eos=source.choice([False, True]),
    )

"""How long running rows wait beside prompts: in the time of a clock that only forwards advance."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import mlx.core as mx
import pytest

from pomona.workers import engine as stepping
from pomona.workers.engine import Engine
from pomona.workers.messages import Request
from tests.workers.engines import Outcome, ask, make_engine, steps, tiny, words

STALL_S = 0.05
FIXED_S, TOKEN_S = 0.01, 0.001
"""What a forward takes, and what each of its tokens takes."""
BUDGET = round((STALL_S - FIXED_S) / TOKEN_S)
"""Tokens of the largest prefill forward within the bound."""


class Forward(NamedTuple):
    rows: int
    width: int
    seconds: float

    @property
    def is_prefill(self) -> bool:
        """Decode steps have a row for each chat at least."""
        return self.width > 1 or self.rows == 1


class Clocked:
    """A model with a clock, which each of its forwards advances by what its tokens cost."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.now = 0.0
        self.forwards: list[Forward] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any) -> Any:
        rows, width = inputs.shape
        self.forwards.append(Forward(rows, width, FIXED_S + TOKEN_S * rows * width))
        self.now += self.forwards[-1].seconds
        return self._model(inputs, cache=cache)


class Told(NamedTuple):
    """When a row got a token, and how many prefill forwards there had been by then."""

    at: float
    prefills: int


def chats(count: int) -> list[Request]:
    return [ask(f"chat{seed}", words(seed, 5 + seed), max_tokens=700, ignore_eos=True) for seed in range(count)]


def until_all_run(engine: Engine, requests: Sequence[Request]) -> None:
    for request in requests:
        engine.assign(request)
    while engine.stats().running < len(requests):
        engine.step()


@pytest.mark.parametrize(
    "newcomers",
    [
        [ask("long", words(9, 700), max_tokens=3, ignore_eos=True)],
        [ask(f"short{seed}", words(100 + seed, 200), max_tokens=1, ignore_eos=True) for seed in range(64)],
        [ask(f"tiny{seed}", words(100 + seed, 9), max_tokens=2, ignore_eos=True) for seed in range(64)],
    ],
    ids=["one long prompt", "64 prompts", "64 short prompts"],
)
def test_between_two_tokens_of_a_row_lies_one_prefill_forward_within_the_bound(
    newcomers: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Clocked(tiny().model)
    monkeypatch.setattr(stepping, "now", lambda: model.now)
    engine = make_engine(tiny(), max_running=8, prefill_chunk=256, stall_s=STALL_S, model=model)
    running = chats(4)
    until_all_run(engine, running)
    begin = len(model.forwards)
    for request in newcomers:
        engine.assign(request)
    told: dict[str, list[Told]] = {request.id: [Told(model.now, 0)] for request in running}
    outcomes = {request.id: Outcome() for request in newcomers}
    for events in steps(engine):
        prefills = sum(forward.is_prefill for forward in model.forwards[begin:])
        for event in events:
            if event.id in outcomes:
                outcomes[event.id].take(event)
            else:
                told[event.id] += [Told(model.now, prefills)] * len(event.tokens)
        if all(outcome.finish for outcome in outcomes.values()):
            break
    assert [len(outcome.tokens) for outcome in outcomes.values()] == [each.limits.max_tokens for each in newcomers]
    prefilled = [forward for forward in model.forwards[begin:] if forward.is_prefill]
    slowest_step = max(forward.seconds for forward in model.forwards[begin:] if not forward.is_prefill)
    assert max(forward.seconds for forward in prefilled) <= STALL_S + 1e-9
    decodes = [index for index, forward in enumerate(model.forwards[begin:]) if not forward.is_prefill]
    behind = [index - number for number, index in enumerate(decodes)]
    for tokens in told.values():
        assert [token.prefills for token in tokens[1:]] == behind[: len(tokens) - 1], "what is drawn is told at once"
        for former, later in pairwise(tokens):
            assert later.prefills - former.prefills <= 1
            # The step that drew the token; and, with no prompt to read any more, the next, launched before it is told.
            assert later.at - former.at <= STALL_S + 2 * slowest_step + 1e-9
        assert tokens[-1].prefills >= len(prefilled) - 1, "the row waits while prompts are read"
    assert max(forward.rows * forward.width for forward in prefilled) > BUDGET // 2, "the bound is not used"

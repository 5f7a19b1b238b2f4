"""Engines that follow grammars."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pomona.workers.constraint.compiler import Compiler
from pomona.workers.engine import Engine, EngineLimits
from pomona.workers.messages import Constraint, Limits, Request, RequestId, Sampling
from pomona.workers.speculation.proposal import Proposer
from tests.workers.constraint.lexicons import tokens
from tests.workers.engines import in_memory, tiny


@contextmanager
def constrained_engine(
    model: Any = None, proposers: Sequence[Proposer] = (), *, max_running: int = 8, limit_s: float = 30.0
) -> Iterator[Engine]:
    loaded = tiny()
    compiler = Compiler(tokens(), limit_s)
    limits = EngineLimits(max_running, 64, 0.0)
    try:
        yield Engine(
            loaded.model if model is None else model,
            loaded.vocabulary,
            loaded.eos,
            limits,
            in_memory(0),
            proposers,
            compiler,
        )
    finally:
        compiler.close(5.0)


def constrained(
    name: str, constraint: Constraint | None, *, temperature: float = 1.0, max_tokens: int = 60, seed: int = 0
) -> Request:
    return Request(
        id=RequestId(name),
        model="tiny",
        prompt=(5, 6, 7, 8 + seed % 50),
        sampling=Sampling(seed=seed, temperature=temperature),
        limits=Limits(max_tokens=max_tokens),
        cache_salt="",
        constraint=constraint,
    )

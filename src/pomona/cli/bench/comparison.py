"""The result of a comparison, as it is printed, and how it follows from what was measured. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pomona.cli.bench.metrics import LoadResult, Ratio, ratio_of
from pomona.cli.bench.plan import Contender, Plan
from pomona.cli.bench.quantile import Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where the figures come from."""

    pomona: str
    mlx_lm: str
    mlx: str
    python: str
    platform: str
    cpus: int
    device: str
    """MLX's default device, as it prints it."""
    blas: str | None
    """What is preloaded into every contender for a fast BLAS; None where MLX brings its own."""
    model: str
    weights: str
    """Data types of the weights on disk, which every contender loads."""
    notes: tuple[str, ...] = ()
    """What makes the comparison less than fair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One load that ran to its end."""

    round: int
    contender: Contender
    single: bool
    load: LoadResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Tokens per second of all streams together, one value for each round."""

    concurrency: int
    pomona: tuple[float, ...]
    mlx_lm: tuple[float, ...]
    ratio: Ratio | None
    """Pomona / mlx_lm.server, round by round: above 1, Pomona is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleStream:
    """Milliseconds per token, median of the requests, one value for each round."""

    pomona: tuple[float, ...]
    stream_generate: tuple[float, ...]
    ratio: Ratio | None
    """Pomona over HTTP / stream_generate in one process: 1.05 means 5 % slower per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    environment: Environment
    plan: Plan
    throughput: tuple[Throughput, ...]
    single: SingleStream | None
    """Tokens after the first text: TPOT."""
    whole: SingleStream | None
    """The same answers with their prefill: latency / tokens. A server that sends its text in bursts has a good TPOT
    and a bad value here."""
    errors: int
    """Failed requests over all loads; a comparison with any is not to be trusted."""
    interrupted: bool
    loads: tuple[Measured, ...]


def conclude(environment: Environment, plan: Plan, loads: Sequence[Measured], *, interrupted: bool) -> Comparison:
    """Ratios from the rounds that both sides finished."""
    return Comparison(
        environment=environment,
        plan=plan,
        throughput=tuple(_throughput(loads, concurrency) for concurrency in plan.streams),
        single=_single(loads, tpot) if plan.single else None,
        whole=_single(loads, whole) if plan.single else None,
        errors=sum(measured.load.errors for measured in loads),
        interrupted=interrupted,
        loads=tuple(loads),
    )


def _throughput(loads: Sequence[Measured], concurrency: int) -> Throughput:
    def rates(contender: Contender) -> dict[int, float]:
        return {
            one.round: one.load.tokens_per_s
            for one in loads
            if one.contender is contender and not one.single and one.load.concurrency == concurrency
        }

    pomona, mlx_lm = rates(Contender.POMONA), rates(Contender.MLX_LM)
    return Throughput(
        concurrency=concurrency,
        pomona=tuple(pomona.values()),
        mlx_lm=tuple(mlx_lm.values()),
        ratio=ratio_of(_pairs(pomona, mlx_lm)),
    )


def tpot(load: LoadResult) -> Percentiles | None:
    return load.tpot_ms


def whole(load: LoadResult) -> Percentiles | None:
    return load.whole_ms


def _single(loads: Sequence[Measured], of: Callable[[LoadResult], Percentiles | None]) -> SingleStream:
    def medians(contender: Contender) -> dict[int, float]:
        return {
            one.round: values.p50
            for one in loads
            if one.contender is contender and one.single and (values := of(one.load)) is not None
        }

    pomona, bare = medians(Contender.POMONA), medians(Contender.BARE)
    return SingleStream(
        pomona=tuple(pomona.values()),
        stream_generate=tuple(bare.values()),
        ratio=ratio_of(_pairs(pomona, bare)),
    )


def _pairs(first: dict[int, float], second: dict[int, float]) -> list[tuple[float, float]]:
    return [(first[turn], second[turn]) for turn in sorted(first.keys() & second.keys())]

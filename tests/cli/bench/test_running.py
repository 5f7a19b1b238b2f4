"""What a sweep asks for."""

from pomona.cli.bench.load import Load
from pomona.cli.bench.mixture import Mixture
from pomona.cli.bench.running import LEAST_OPEN_REQUESTS, WARM_UP_STREAMS, Sweep, warm_up

LOAD = Load(concurrency=1, requests=1, max_tokens=Mixture.of(64), prompt_words=Mixture.of(4), cancel=0.5)


def test_a_closed_loop_has_two_requests_a_stream_and_four_where_it_finds_the_capacity() -> None:
    assert [Sweep(load=LOAD, streams=(1, 8)).closed(streams).requests for streams in (1, 8)] == [4, 16]
    assert [Sweep(load=LOAD, streams=(4, 8), percents=(50.0,)).closed(n).requests for n in (4, 8)] == [8, 32]
    assert Sweep(load=LOAD, streams=(8,), requests=3).closed(8).requests == 3


def test_an_open_loop_has_half_a_minute_of_arrivals() -> None:
    sweep = Sweep(load=LOAD, streams=(2, 16))
    assert [sweep.open(rate).requests for rate in (0.1, 5.0)] == [LEAST_OPEN_REQUESTS, 150]
    assert (sweep.open(5.0).rate, sweep.open(5.0).concurrency) == (5.0, 16)
    assert Sweep(load=LOAD).open(5.0).concurrency == WARM_UP_STREAMS


def test_loads_share_no_prompt_with_each_other_or_with_their_warm_ups() -> None:
    sweep = Sweep(load=LOAD, streams=(2, 4))
    loads = [sweep.closed(2), sweep.closed(4), sweep.open(1.0), sweep.open(2.0)]
    prompts = [one.prompt for load in (*loads, *map(warm_up, loads)) for one in load.asks]
    assert len(set(prompts)) == len(prompts)


def test_a_warm_up_is_a_closed_loop_of_short_answers_that_nobody_leaves() -> None:
    warming = warm_up(Sweep(load=LOAD, streams=(4,)).open(1.0))
    assert (warming.rate, warming.cancel, warming.requests, warming.concurrency) == (None, 0.0, 4, 4)
    assert warming.max_tokens == Mixture.of(8)

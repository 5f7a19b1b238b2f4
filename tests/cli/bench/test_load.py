"""The load client against a real HTTP server."""

import asyncio
import dataclasses
import socket
from typing import Any

import pytest

from pomona.cli.bench.answer import Answer, Failure, Left, Outcome
from pomona.cli.bench.asks import arrivals
from pomona.cli.bench.load import Load, Target, run_load
from pomona.cli.bench.mixture import Mixture
from tests.cli.bench.stub import Stub


def load(concurrency: int = 1, requests: int = 1, **changes: Any) -> Load:
    basis = Load(
        concurrency=concurrency,
        requests=requests,
        max_tokens=Mixture.of(5),
        prompt_words=Mixture.of(4),
        request_timeout_s=20.0,
    )
    return dataclasses.replace(basis, **changes)


async def run(target: Target, todo: Load) -> list[Outcome]:
    outcomes: list[Outcome] = []
    await run_load(target, todo, outcomes.append)
    return outcomes


async def failure(target: Target, todo: Load) -> str:
    (outcome,) = await run(target, todo)
    assert isinstance(outcome, Failure)
    assert outcome.started <= outcome.finished
    return outcome.reason


async def test_every_answer_has_its_moments_in_order_and_the_servers_counts(stub: Stub) -> None:
    outcomes = await run(Target(url=stub.url, model="good"), load(2, 5))
    assert len(outcomes) == 5
    for outcome in outcomes:
        assert isinstance(outcome, Answer)
        assert len(outcome.deltas) == 4
        assert [outcome.started, *outcome.deltas, outcome.finished] == sorted(
            [outcome.started, *outcome.deltas, outcome.finished]
        )
        assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.finish) == (11, 5, "length")


async def test_as_many_requests_run_at_once_as_there_are_streams(stub: Stub) -> None:
    stub.meet = 3
    assert len(await run(Target(url=stub.url, model="good"), load(3, 9))) == 9
    assert stub.most_running == 3


async def test_requests_are_streamed_greedy_counted_and_never_alike(stub: Stub) -> None:
    await run(Target(url=stub.url, model="good", key="secret"), load(4, 12))
    assert len({str(body["messages"]) for body in stub.bodies}) == 12
    body = stub.bodies[0]
    assert (body["model"], body["max_tokens"], body["temperature"], body["stream"]) == ("good", 5, 0.0, True)
    assert body["stream_options"] == {"include_usage": True}
    assert "top_p" not in body
    assert set(stub.keys) == {"Bearer secret"}


async def test_without_a_key_no_header_is_sent(stub: Stub) -> None:
    await run(Target(url=stub.url, model="good"), load())
    assert stub.keys == [None]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("refusing", "HTTP 429: "),
        ("failing", "the worker died"),
        ("garbled", "unreadable event"),
        ("endless", "without a finish_reason"),
        ("uncounted", "no usage"),
    ],
)
async def test_whatever_a_server_does_wrong_is_a_failure_with_its_reason(stub: Stub, model: str, reason: str) -> None:
    assert reason in await failure(Target(url=stub.url, model=model), load())


async def test_a_request_has_a_deadline(stub: Stub) -> None:
    assert await failure(Target(url=stub.url, model="stuck"), load(request_timeout_s=0.2)) == "no end within 0.2 s"


async def test_a_server_that_is_gone_is_a_failure_of_every_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    outcomes = await run(Target(url=url, model="good"), load(2, 3))
    assert [isinstance(outcome, Failure) and "ConnectError" in outcome.reason for outcome in outcomes] == [True] * 3


async def test_a_connection_that_breaks_before_the_answer_begins_is_made_again() -> None:
    """A listening queue that overflows cuts clients off; two new attempts are made, no more."""
    cut: list[int] = []

    async def cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        cut.append(1)
        writer.close()

    server = await asyncio.start_server(cut_off, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        (outcome,) = await run(Target(url=f"http://127.0.0.1:{port}/v1", model="good"), load(1, 1))
    assert isinstance(outcome, Failure)
    assert len(cut) == 3


async def test_a_cancelled_load_keeps_what_had_ended(stub: Stub) -> None:
    stub.answer_first = 2
    outcomes: list[Outcome] = []
    running = asyncio.create_task(run_load(Target(url=stub.url, model="stuck"), load(1, 5), outcomes.append))
    async with asyncio.timeout(20):
        assert await asyncio.to_thread(stub.stuck.wait, 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert len(outcomes) == 2
    assert all(isinstance(outcome, Answer) for outcome in outcomes)


async def test_an_open_loop_waits_for_no_answer(stub: Stub) -> None:
    stub.meet = 6
    outcomes = await run(Target(url=stub.url, model="good"), load(1, 6, rate=200.0))
    assert [type(outcome) for outcome in outcomes] == [Answer] * 6
    assert stub.most_running == 6


async def test_the_clock_of_an_open_request_starts_at_its_planned_arrival(stub: Stub) -> None:
    todo = load(1, 8, rate=100.0, seed="7")
    outcomes = await run(Target(url=stub.url, model="good"), todo)
    assert len(outcomes) == 8
    answers = sorted((one for one in outcomes if isinstance(one, Answer)), key=lambda one: one.started)
    planned = arrivals("7", 8, 100.0)
    epoch = answers[0].started - planned[0]
    assert [one.started - epoch for one in answers] == pytest.approx(list(planned), abs=1e-6)
    assert all(0 < one.lag < one.ttft for one in answers)


async def test_a_client_that_leaves_is_neither_an_answer_nor_a_failure(stub: Stub) -> None:
    outcomes = await run(Target(url=stub.url, model="chatty"), load(2, 6, cancel=1.0))
    assert [type(outcome) for outcome in outcomes] == [Left] * 6
    asked = sorted(one.leaves_after or 0 for one in load(2, 6, cancel=1.0).asks)
    assert sorted(len(outcome.deltas) for outcome in outcomes if isinstance(outcome, Left)) == asked


async def test_an_answer_that_ends_before_its_client_would_leave_is_an_answer(stub: Stub) -> None:
    outcomes = await run(Target(url=stub.url, model="good"), load(1, 3, cancel=1.0, max_tokens=Mixture.of(10_000)))
    assert all(isinstance(outcome, Answer) for outcome in outcomes)


async def test_the_end_of_sequence_is_ignored_only_where_that_is_asked_for(stub: Stub) -> None:
    await run(Target(url=stub.url, model="good"), load())
    await run(Target(url=stub.url, model="good"), load(ignore_eos=True))
    assert [body.get("ignore_eos") for body in stub.bodies] == [None, True]

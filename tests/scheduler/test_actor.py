"""The scheduler and its client over real sockets, with workers that speak the real messages."""

import asyncio

import pytest

from pomona.config import SchedulerConfig
from pomona.runtime.control import Ready
from pomona.runtime.wire import replace
from pomona.scheduler.client import Rejected, TokenStream
from pomona.scheduler.messages import ModelState
from pomona.workers.messages import Assign, Drain, Request, RequestId, Stepped, TokenEvent, WorkerReady, WorkerStats
from tests.scheduler.harness import Gateway, SocketWorker, System, until
from tests.scheduler.rows import answer, event, request


async def whole(stream: TokenStream) -> list[TokenEvent]:
    async with asyncio.timeout(20):
        return [event async for event in stream]


def tokens(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.tokens]


def assert_whole(events: list[TokenEvent], wanted: Request) -> None:
    assert tokens(events) == answer(wanted)
    assert [event.finish is not None for event in events] == [False] * (len(events) - 1) + [True]


async def started(system: System) -> tuple[Gateway, SocketWorker]:
    await system.boot()
    gateway = await system.gateway()
    worker = await system.worker()
    await until(lambda: [model.state for model in gateway.client.models] == ["ready"])
    return gateway, worker


async def gauges(gateway: Gateway) -> tuple[int, int]:
    stats = await gateway.client.stats(5)
    return stats.running, stats.waiting


async def test_ready_is_said_once_the_hub_is_bound() -> None:
    async with System() as system:
        await system.boot()
        assert Ready("models: m") in [message for _, message in system.heard]


async def test_a_stream_brings_every_token_once_and_ends() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        worker.go()
        wanted = request("a", max_tokens=20)
        assert_whole(await whole(gateway.client.submit(wanted)), wanted)
        assert await gauges(gateway) == (0, 0)
        assert (await gateway.client.stats(5)).finished == 1


async def test_an_answer_without_tokens_still_ends() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        worker.go()
        wanted = request("a", max_tokens=0)
        assert_whole(await whole(gateway.client.submit(wanted)), wanted)


async def test_progress_of_a_prefill_reaches_the_stream() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        stream = gateway.client.submit(request("a"))
        await until(worker.assigned)
        await worker.send(Stepped((), WorkerStats(prefilling=1), {RequestId("a"): 2}))
        await until(lambda: stream.prefilled == 2)


async def test_clients_learn_of_models_as_they_come_and_go() -> None:
    async with System(models=("m", "n")) as system:
        await system.boot()
        gateway = await system.gateway()
        assert [(model.id, model.state) for model in gateway.client.models] == [("m", "loading"), ("n", "loading")]
        worker = await system.worker(context=77)
        ready = ModelState(id="m", state="ready", context=77, workers=1, methods=("ngram",))
        await until(lambda: ready in gateway.client.models)
        await system.lose_worker(worker)
        lost = ModelState(id="m", state="loading", context=77, methods=("ngram",))
        await until(lambda: lost in gateway.client.models)
        await system.declare("worker:n", 3, "failed", "worker", model="n", detail="weights are corrupt")
        await until(lambda: ModelState(id="n", state="failed", detail="weights are corrupt") in gateway.client.models)


@pytest.mark.parametrize(
    ("wanted", "kind", "says"),
    [
        (request("a", model="x"), "unknown_model", "served: m"),
        (request("a", prompt=tuple(range(95)), max_tokens=6), "context_length", "95 prompt tokens and 6 output tokens"),
        (request("a", prompt=()), "context_length", "holds no token"),
    ],
)
async def test_what_cannot_run_is_rejected_with_the_reason(wanted: Request, kind: str, says: str) -> None:
    async with System() as system:
        gateway, _ = await started(system)
        with pytest.raises(Rejected, match=says) as rejected:
            await whole(gateway.client.submit(wanted))
        assert rejected.value.kind == kind
        assert await gauges(gateway) == (0, 0)


async def test_a_full_queue_says_when_to_come_back() -> None:
    async with System(scheduler=SchedulerConfig(max_waiting=2)) as system:
        await system.boot()
        gateway = await system.gateway()
        waiting = [gateway.client.submit(request(id)) for id in "ab"]
        with pytest.raises(Rejected, match="2 requests are waiting") as rejected:
            await whole(gateway.client.submit(request("c")))
        assert rejected.value.kind == "queue_full"
        assert (rejected.value.retry_after_s or 0) >= 1
        worker = await system.worker()
        worker.go()
        for stream in waiting:
            assert_whole(await whole(stream), stream.request)


async def test_a_request_waits_for_its_model_only_so_long() -> None:
    async with System(scheduler=SchedulerConfig(max_waiting_s=0.05)) as system:
        await system.boot()
        gateway = await system.gateway()
        with pytest.raises(Rejected, match=r"scheduler\.max_waiting_s") as rejected:
            await whole(gateway.client.submit(request("a")))
        assert rejected.value.kind == "waited_too_long"


async def test_requests_for_a_model_that_failed_are_unavailable_with_its_reason() -> None:
    async with System() as system:
        await system.boot()
        gateway = await system.gateway()
        waiting = gateway.client.submit(request("a"))
        await until(lambda: system.heard)
        await system.declare("worker:m", 0, "failed", "worker", model="m", detail="weights are corrupt")
        for stream in (waiting, gateway.client.submit(request("b"))):
            with pytest.raises(Rejected, match="weights are corrupt") as rejected:
                await whole(stream)
            assert rejected.value.kind == "unavailable"


async def test_a_cancelled_waiting_request_leaves_the_queue() -> None:
    async with System() as system:
        await system.boot()
        gateway = await system.gateway()
        stream = gateway.client.submit(request("a"))
        assert await gauges(gateway) == (0, 1)
        await gateway.client.cancel(RequestId("a"))
        await gateway.client.cancel(RequestId("a"))
        assert await whole(stream) == []
        assert await gauges(gateway) == (0, 0)


async def test_a_cancelled_running_request_counts_until_its_worker_has_dropped_it() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        worker.heedless = True
        async with gateway.client.submit(request("a")) as stream:
            await until(worker.assigned)
            await worker.step(2)
            first = await anext(stream)
            assert list(first.tokens) == answer(stream.request)[:2]
        await until(worker.cancelled)
        await worker.step()
        assert await gauges(gateway) == (1, 0)
        await worker.drop(RequestId("a"))
        async with asyncio.timeout(10):
            while await gauges(gateway) != (0, 0):
                pass
        assert await whole(stream) == []
        assert (await gateway.client.stats(5)).cancelled == 1


async def test_a_stream_that_ended_is_not_cancelled_on_exit() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        worker.go()
        async with gateway.client.submit(request("a")) as stream:
            await whole(stream)
        await gateway.client.cancel(RequestId("unknown"))
        assert (await gateway.client.stats(5)).cancelled == 0
        assert worker.cancelled() == []


async def test_a_worker_is_never_given_more_rows_than_it_has() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        streams = [gateway.client.submit(request(f"r{n}", max_tokens=5 + n, seed=n)) for n in range(12)]
        worker.go()  # it asserts its bound
        for stream in streams:
            assert_whole(await whole(stream), stream.request)


async def test_a_stream_only_pauses_when_its_worker_dies() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        stream = gateway.client.submit(request("a", max_tokens=9))
        await until(worker.assigned)
        await worker.step(4)
        first = await anext(stream)
        await system.lose_worker(worker)
        await until(lambda: [model.state for model in gateway.client.models] == ["loading"])
        assert await gauges(gateway) == (0, 1)
        again = await system.worker(incarnation=1)
        await until(again.assigned)
        assigned = again.heard[0]
        assert isinstance(assigned, Assign)
        assert assigned.request.committed == first.tokens
        again.go()
        assert_whole([first, *await whole(stream)], stream.request)
        stats = await gateway.client.stats(5)
        assert (stats.resumed, stats.worker_deaths, stats.finished) == (1, 1, 1)


async def test_words_of_a_worker_that_was_declared_dead_are_not_heard() -> None:
    async with System() as system:
        gateway, ghost = await started(system)
        stream = gateway.client.submit(request("a", max_tokens=3))
        await until(ghost.assigned)
        await system.declare("worker:m", 0, "dead", "worker", model="m")
        await until(lambda: [model.state for model in gateway.client.models] == ["loading"])
        await ghost.step(2)
        await ghost.send(WorkerReady("m", 4, 100))
        worker = await system.worker(incarnation=1)
        await until(worker.assigned)
        worker.go()
        assert_whole(await whole(stream), stream.request)
        assert await gauges(gateway) == (0, 0)


async def test_a_silent_worker_is_killed_and_its_requests_run_elsewhere() -> None:
    async with System(scheduler=SchedulerConfig(progress_timeout_s=0.1)) as system:
        gateway, silent = await started(system)
        stream = gateway.client.submit(request("a"))
        await until(silent.assigned)
        await until(system.kills)
        kill = system.kills()[0]
        assert (kill.name, kill.incarnation) == ("worker:m", 0)
        assert "progress" in kill.reason
        worker = await system.worker(incarnation=1)
        worker.go()
        assert_whole(await whole(stream), stream.request)


async def test_a_worker_that_vanished_is_found_out_by_the_next_message_to_it() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        other = await system.worker("worker:m:1", max_running=1000)
        other.go()
        await until(lambda: gateway.client.models[0].workers == 2)
        system.workers.remove(worker)
        await worker.die()  # and the supervisor has not noticed yet
        streams: list[TokenStream] = []
        while not system.kills():
            streams.append(gateway.client.submit(request(f"r{len(streams)}")))
            await gauges(gateway)
        assert (system.kills()[0].name, system.kills()[0].incarnation) == ("worker:m", 0)
        for stream in streams:
            assert_whole(await whole(stream), stream.request)


async def test_a_worker_that_loses_an_event_is_told_to_run_the_request_again() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        stream = gateway.client.submit(request("a"))
        await until(worker.assigned)
        await worker.step()
        worker.rows.step([1])  # never sent
        await worker.step()
        await until(lambda: worker.assigned() == ["a", "a"])
        worker.go()
        assert_whole(await whole(stream), stream.request)


async def test_an_event_that_comes_twice_is_delivered_once() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        stream = gateway.client.submit(request("a"))
        await until(worker.assigned)
        first = await worker.step(3)
        await worker.send(Stepped(first, WorkerStats(running=1)))
        worker.go()
        assert_whole(await whole(stream), stream.request)


async def test_requests_of_a_dead_gateway_are_cancelled_in_the_workers() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        other = await system.gateway("gateway:1")
        lost = [other.client.submit(request(f"lost{n}")) for n in range(6)]
        await until(lambda: len(worker.assigned()) == 4)
        kept = gateway.client.submit(request("kept"))
        await system.lose_gateway(other)
        await until(lambda: len(worker.cancelled()) == 4)
        worker.go()
        assert_whole(await whole(kept), kept.request)
        assert await gauges(gateway) == (0, 0)
        assert (await gateway.client.stats(5)).cancelled == len(lost)


async def test_a_gateway_that_was_reborn_starts_clean() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        gateway.client.submit(request("a"))
        await until(worker.assigned)
        await system.lose_gateway(gateway)
        reborn = await system.gateway(incarnation=1)
        await until(worker.cancelled)
        worker.go()
        assert_whole(await whole(reborn.client.submit(request("b"))), request("b"))
        assert await gauges(reborn) == (0, 0)


async def test_streams_survive_the_kill_of_the_scheduler() -> None:
    async with System() as system:
        await system.boot(process=True)
        gateway = await system.gateway()
        worker = await system.worker(max_running=3)
        streams = [gateway.client.submit(request(f"r{n}", max_tokens=10, seed=n)) for n in range(8)]
        taken: dict[str, list[TokenEvent]] = {stream.id: [] for stream in streams}
        await until(lambda: len(worker.assigned()) == 3)
        await worker.step(4)
        for stream in streams[:3]:
            taken[stream.id].append(await anext(stream))
        await system.kill()
        await worker.step(2)  # into the void
        assert not gateway.client.connected
        late = gateway.client.submit(request("late"))
        await system.boot(process=True)
        await until(lambda: gateway.client.connected)
        worker.heard.clear()
        await worker.reconnect()
        await until(lambda: len(worker.assigned()) == 3)
        assert {m.request.id: len(m.request.committed) for m in worker.heard if isinstance(m, Assign)} == {
            "r0": 4,
            "r1": 4,
            "r2": 4,
        }
        worker.go()
        for stream in streams:
            assert_whole([*taken[stream.id], *await whole(stream)], stream.request)
        assert_whole(await whole(late), late.request)
        assert await gauges(gateway) == (0, 0)
        await system.kill()


async def test_a_stop_refuses_what_is_new_and_lets_finish_what_runs() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        stream = gateway.client.submit(request("a"))
        await until(worker.assigned)
        system.stop(grace_s=20)
        async with asyncio.timeout(10):
            while True:
                with pytest.raises(Rejected, match="stopping") as rejected:
                    await whole(gateway.client.submit(request("b", model="unknown unless stopping")))
                if rejected.value.kind == "unavailable":
                    break
        worker.go()
        assert_whole(await whole(stream), stream.request)
        await system.ended()


async def test_a_stop_whose_grace_is_over_drains_the_workers_and_tells_the_clients() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        stream = gateway.client.submit(request("a"))
        await until(worker.assigned)
        system.stop(grace_s=0)
        with pytest.raises(Rejected, match="stopped before the answer was complete"):
            await whole(stream)
        await until(lambda: worker.heard[-1:] == [Drain()])
        await system.ended()


async def test_an_answer_that_was_complete_but_for_its_end_gets_it_after_a_resume() -> None:
    async with System() as system:
        gateway, worker = await started(system)
        stream = gateway.client.submit(request("a", max_tokens=4))
        await until(worker.assigned)
        last = replace(event(stream.request, 0, 4), finish=None)
        await worker.send(Stepped((last,), WorkerStats(running=1)))
        first = await anext(stream)
        await system.lose_worker(worker)
        again = await system.worker(incarnation=1)
        again.go()
        assert_whole([first, *await whole(stream)], stream.request)

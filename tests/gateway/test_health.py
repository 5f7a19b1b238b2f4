from prometheus_client.parser import text_string_to_metric_families

from pomona.runtime.tally import Tally
from pomona.scheduler.messages import ModelState, WorkerSnapshot
from pomona.workers.messages import MethodFigures, WorkerStats
from tests.gateway.conftest import Gateway

CHAT = "/v1/chat/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


async def samples_of(gateway: Gateway) -> dict[str, float]:
    """Values by `name{label=value,…}`."""
    text = (await gateway.http.get("/metrics")).text
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_ready_once_every_model_can_answer(gateway: Gateway) -> None:
    assert (await gateway.http.get("/health/ready")).status_code == 200
    gateway.source.models = (
        ModelState(id="tiny", state="ready", workers=1),
        ModelState(id="org/tiny-2", state="loading", detail="warming up"),
    )
    response = await gateway.http.get("/health/ready")
    assert response.status_code == 503
    assert response.json()["reason"] == "model org/tiny-2 is loading (warming up)"
    assert (await gateway.http.get("/health/live")).status_code == 200


async def test_one_model_that_failed_does_not_take_the_others_down(gateway: Gateway) -> None:
    failed = ModelState(id="org/tiny-2", state="failed", detail="corrupt")
    gateway.source.models = (ModelState(id="tiny", state="ready", workers=1), failed)
    assert (await gateway.http.get("/health")).status_code == 200
    gateway.source.models = (failed,)
    response = await gateway.http.get("/health")
    assert response.status_code == 503
    assert "corrupt" in response.json()["reason"]


async def test_not_ready_without_the_scheduler_or_while_stopping(gateway: Gateway) -> None:
    gateway.source.connected = False
    response = await gateway.http.get("/health/ready")
    assert response.status_code == 503
    assert "scheduler" in response.json()["reason"]
    gateway.source.connected = True
    gateway.services.closing.close()
    assert (await gateway.http.get("/health/ready")).json()["reason"] == "the server is stopping"


async def test_status_lists_the_actors_and_the_work(gateway: Gateway) -> None:
    gateway.source.workers = (WorkerSnapshot("worker:tiny", 2, "tiny", WorkerStats(running=1), 0.25),)
    status = (await gateway.http.get("/admin/status")).json()
    assert status["actors"] == [
        {
            "name": "scheduler",
            "kind": "scheduler",
            "incarnation": 3,
            "state": "ready",
            "pid": 42,
            "model": None,
            "detail": "",
        }
    ]
    assert [model["id"] for model in status["models"]] == ["tiny", "org/tiny-2"]
    assert status["uptime_s"] >= 0
    assert status["ready"] is True
    assert status["scheduler"]["workers"][0]["silent_s"] == 0.25


async def test_metrics_count_requests_and_tokens(gateway: Gateway) -> None:
    await gateway.http.post(CHAT, json=ASK)
    await gateway.http.post(CHAT, json={})
    await gateway.http.get("/no/such/route")
    samples = await samples_of(gateway)
    name = "pomona_gateway_http_requests_total{method=POST}{route=/v1/chat/completions}"
    assert samples[name + "{status=200}"] == 1
    assert samples[name + "{status=400}"] == 1
    assert samples["pomona_gateway_http_requests_total{method=any}{route=none}{status=404}"] == 1
    assert samples["pomona_gateway_ttft_seconds_count{model=tiny}"] == 1
    assert samples["pomona_gateway_inter_token_seconds_count{model=tiny}"] == 1
    assert samples["pomona_gateway_http_in_flight"] == 1  # the scrape itself


async def test_metrics_carry_the_schedulers_counters(gateway: Gateway) -> None:
    stats = WorkerStats(
        running=2,
        decode_steps=7,
        kv_bytes=1024,
        decode_times=Tally((0, 3, 4, *[0] * 11), 0.02),
        prefill_times=Tally((0, 0, 0, 0, 0, 1, *[0] * 8), 0.04),
        widths=Tally((5, 2, *[0] * 7), 9.0),
    )
    gateway.source.workers = (WorkerSnapshot("worker:tiny", 2, "tiny", stats, 1.5, 300, 400),)
    gateway.source.preempted = 4
    gateway.source.waits = Tally((2, 0, 1, *[0] * 10, 5), 61.5)
    samples = await samples_of(gateway)
    assert samples["pomona_scheduler_up"] == 1
    assert samples["pomona_scheduler_waiting"] == 0
    assert samples["pomona_scheduler_running"] == 0
    assert samples["pomona_scheduler_refused_total{reason=queue_full}"] == 3
    assert samples["pomona_worker_running{model=tiny}{worker=worker:tiny}"] == 2
    assert samples["pomona_worker_decode_steps_total{model=tiny}{worker=worker:tiny}"] == 7
    assert samples["pomona_worker_silent_seconds{model=tiny}{worker=worker:tiny}"] == 1.5
    assert samples["pomona_worker_kv_reserved_bytes{model=tiny}{worker=worker:tiny}"] == 300
    assert samples["pomona_worker_kv_capacity_bytes{model=tiny}{worker=worker:tiny}"] == 400
    steps = "pomona_worker_step_seconds"
    assert samples[steps + "_bucket{le=0.002}{model=tiny}{phase=decode}{worker=worker:tiny}"] == 3
    assert samples[steps + "_count{model=tiny}{phase=decode}{worker=worker:tiny}"] == 7
    assert samples[steps + "_sum{model=tiny}{phase=decode}{worker=worker:tiny}"] == 0.02
    assert samples[steps + "_bucket{le=0.02}{model=tiny}{phase=prefill}{worker=worker:tiny}"] == 0
    assert samples[steps + "_bucket{le=0.05}{model=tiny}{phase=prefill}{worker=worker:tiny}"] == 1
    assert samples["pomona_worker_batch_width_bucket{le=1.0}{model=tiny}{worker=worker:tiny}"] == 5
    assert samples["pomona_worker_batch_width_count{model=tiny}{worker=worker:tiny}"] == 7
    assert samples["pomona_scheduler_preempted_total"] == 4
    assert samples["pomona_scheduler_queue_wait_seconds_bucket{le=0.05}"] == 2
    assert samples["pomona_scheduler_queue_wait_seconds_bucket{le=600.0}"] == 3
    assert samples["pomona_scheduler_queue_wait_seconds_bucket{le=+Inf}"] == 8
    assert samples["pomona_scheduler_queue_wait_seconds_count"] == 8
    assert samples["pomona_scheduler_queue_wait_seconds_sum"] == 61.5


async def test_metrics_tell_speculation_by_method_and_depth(gateway: Gateway) -> None:
    ngram = MethodFigures(tested=(9, 6), accepted=(6, 2), unused=4, propose_seconds=0.5)
    stats = WorkerStats(
        speculation={"ngram": ngram, "mtp": MethodFigures(tested=(1,))},
        verify_steps=9,
        verify_seconds=0.75,
        saved_forwards=8,
    )
    gateway.source.workers = (
        WorkerSnapshot("worker:tiny", 2, "tiny", stats, 0.0),
        WorkerSnapshot("worker:other", 2, "other", WorkerStats(), 0.0),
    )
    samples = await samples_of(gateway)
    where = "{model=tiny}{worker=worker:tiny}"
    told = {name: value for name, value in samples.items() if name.startswith("pomona_worker_speculation_")}
    at = "{method=ngram}" + where
    assert told == {
        f"pomona_worker_speculation_tested_total{{depth=1}}{at}": 9,
        f"pomona_worker_speculation_tested_total{{depth=2}}{at}": 6,
        f"pomona_worker_speculation_accepted_total{{depth=1}}{at}": 6,
        f"pomona_worker_speculation_accepted_total{{depth=2}}{at}": 2,
        f"pomona_worker_speculation_unused_total{at}": 4,
        f"pomona_worker_speculation_propose_seconds_total{at}": 0.5,
        f"pomona_worker_speculation_tested_total{{depth=1}}{{method=mtp}}{where}": 1,
        f"pomona_worker_speculation_unused_total{{method=mtp}}{where}": 0,
        f"pomona_worker_speculation_propose_seconds_total{{method=mtp}}{where}": 0,
    }
    assert samples[f"pomona_worker_verify_steps_total{where}"] == 9
    assert samples[f"pomona_worker_verify_seconds_total{where}"] == 0.75
    assert samples[f"pomona_worker_saved_forwards_total{where}"] == 8


async def test_metrics_do_without_the_scheduler(gateway: Gateway) -> None:
    await gateway.http.post(CHAT, json=ASK)
    gateway.source.answers_stats = False
    samples = await samples_of(gateway)
    assert samples["pomona_scheduler_up"] == 0
    assert "pomona_scheduler_running" not in samples
    assert samples["pomona_gateway_ttft_seconds_count{model=tiny}"] == 1

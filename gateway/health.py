"""Health, status and metrics: what is up, what is not yet, and what it is doing."""

from fastapi import APIRouter
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pomona import __version__
from pomona.gateway.body import JsonObject, JsonValue, encode_json
from pomona.gateway.cache_figures import CacheCollector
from pomona.gateway.intake import services_of
from pomona.gateway.services import Services
from pomona.runtime.mailbox import now
from pomona.scheduler.messages import Stats

router = APIRouter()

STATS_TIMEOUT_S = 1.0
"""Seconds that a scrape or status waits for the scheduler."""


@router.get("/health/live")
async def live() -> Response:
    """This process answers."""
    return _json({"status": "ok"})


@router.get("/health")
@router.get("/health/ready")
async def ready(http: HttpRequest) -> Response:
    """200 once every model that did not fail can answer, and at least one can; else 503 with the reason."""
    services = services_of(http)
    reason = not_ready(services)
    body: JsonObject = {"status": "ok" if reason is None else "unavailable", "models": _models(services)}
    if reason is not None:
        body["reason"] = reason
    return _json(body, 200 if reason is None else 503)


def not_ready(services: Services) -> str | None:
    """Why requests cannot be answered now; None if they can."""
    if services.closing.closed:
        return "the server is stopping"
    if not services.source.connected:
        return "the scheduler does not answer yet; it is starting or being restarted"
    states = services.source.models
    loading = [state for state in states if state.state == "loading"]
    if loading:
        return "; ".join(f"model {state.id} is loading" + _detail(state.detail) for state in loading)
    if not any(state.state == "ready" for state in states):
        failed = "; ".join(f"model {state.id} failed" + _detail(state.detail) for state in states)
        return failed or "no model is configured"
    return None


def _detail(detail: str) -> str:
    return f" ({detail})" if detail else ""


@router.get("/admin/status")
async def status(http: HttpRequest) -> Response:
    """All actors as the supervisor sees them, the models, and the work at hand."""
    services = services_of(http)
    stats = await _stats(services)
    actors: list[JsonValue] = [
        {
            "name": actor.name,
            "kind": actor.kind,
            "incarnation": actor.incarnation,
            "state": actor.state,
            "pid": actor.pid,
            "model": actor.model,
            "detail": actor.detail,
        }
        for actor in services.roster().actors
    ]
    return _json(
        {
            "version": __version__,
            "uptime_s": round(now() - services.started, 3),
            "ready": not_ready(services) is None,
            "reason": not_ready(services),
            "actors": actors,
            "models": _models(services),
            "scheduler": None if stats is None else _work(stats),
            "cache": await _cache(services),
        }
    )


@router.get("/metrics")
async def metrics(http: HttpRequest) -> Response:
    services = services_of(http)
    stats, others = await _stats(services), []
    if services.cache is not None:
        others.append(CacheCollector(await services.cache.ask()))
    return Response(services.metrics.render(stats, *others), media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def _stats(services: Services) -> Stats | None:
    if not services.source.connected:
        return None
    try:
        return await services.source.stats(STATS_TIMEOUT_S)
    except TimeoutError:
        return None


def _models(services: Services) -> list[JsonValue]:
    return [
        {
            "id": state.id,
            "state": state.state,
            "context": state.context,
            "workers": state.workers,
            "detail": state.detail,
        }
        for state in services.source.models
    ]


def _work(stats: Stats) -> JsonObject:
    workers: list[JsonValue] = [
        {
            "name": worker.name,
            "incarnation": worker.incarnation,
            "model": worker.model,
            "running": worker.stats.running,
            "prefilling": worker.stats.prefilling,
            "silent_s": round(worker.silent_s, 3),
        }
        for worker in stats.workers
    ]
    return {
        "waiting": stats.waiting,
        "running": stats.running,
        "resumed": stats.resumed,
        "worker_deaths": stats.worker_deaths,
        "workers": workers,
    }


async def _cache(services: Services) -> JsonValue:
    stats = await services.cache.ask() if services.cache is not None else None
    if stats is None:
        return None
    return {"enabled": stats.enabled, "detail": stats.detail, "blocks": stats.blocks, "bytes": stats.bytes}


def _json(body: JsonObject, status: int = 200) -> Response:
    return Response(encode_json(body), status, media_type="application/json")

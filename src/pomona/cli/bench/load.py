"""The load: a closed loop of streamed chat requests against any OpenAI-compatible server."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice

import httpx

from pomona.cli.bench.answer import AnswerReader, Failure, Outcome, shorten
from pomona.cli.bench.prompts import unique_prompts

RECONNECT_AFTER_S = (0.05, 0.2)
"""Pauses before a request whose connection broke is sent again; so many times, then it is a failure."""

Done = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and the model to ask of it. `url` ends in /v1 (or whatever stands before /chat/completions)."""

    url: str
    model: str
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`concurrency` clients that each send their next request when the last one has ended, `requests` in all."""

    concurrency: int
    requests: int
    max_tokens: int
    prompt_words: int = 40
    temperature: float = 0.0
    top_p: float | None = None
    seed: str = "0"
    """The same seed gives the same prompts."""
    request_timeout_s: float = 600.0


def bodies(load: Load, model: str) -> Iterator[dict[str, object]]:
    """The request bodies of a load, no prompt twice."""
    for prompt in islice(unique_prompts(load.seed, load.prompt_words), load.requests):
        body: dict[str, object] = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": load.max_tokens,
            "temperature": load.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if load.top_p is not None:
            body["top_p"] = load.top_p
        yield body


async def ask(client: httpx.AsyncClient, url: str, body: dict[str, object], timeout_s: float) -> Outcome:
    """Sends one request and reads its stream to the end; every trouble of the server is a `Failure`.

    A connection that breaks before the head of the answer is tried again, as the SDKs do it: mlx_lm.server's listening
    queue holds five clients, and more that come at once are cut off. The clock runs on meanwhile.
    """
    started = time.perf_counter()
    reader = AnswerReader(started)
    try:
        async with asyncio.timeout(timeout_s), AsyncExitStack() as stack:
            response = await _open(stack, client, url, body)
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                reason = shorten(f"HTTP {response.status_code}: {text}")
                return Failure(started=started, finished=time.perf_counter(), reason=reason)
            async for line in response.aiter_lines():
                reader.feed(line, time.perf_counter())
    except TimeoutError:
        reason = f"no end within {timeout_s:g} s"
        return Failure(started=started, finished=time.perf_counter(), reason=reason)
    except httpx.HTTPError as error:
        reason = shorten(f"{type(error).__name__}: {error}")
        return Failure(started=started, finished=time.perf_counter(), reason=reason)
    return reader.outcome(time.perf_counter())


async def _open(stack: AsyncExitStack, client: httpx.AsyncClient, url: str, body: dict[str, object]) -> httpx.Response:
    for pause_s in RECONNECT_AFTER_S:
        try:
            return await stack.enter_async_context(client.stream("POST", url, json=body))
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            await asyncio.sleep(pause_s)
    return await stack.enter_async_context(client.stream("POST", url, json=body))


async def run_load(target: Target, load: Load, done: Done) -> None:
    """Runs the whole load and calls `done` with each outcome as it comes, so a cancelled run has lost nothing."""
    url = f"{target.url.rstrip('/')}/chat/completions"
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    limits = httpx.Limits(max_connections=load.concurrency, max_keepalive_connections=load.concurrency)
    waiting = bodies(load, target.model)
    async with httpx.AsyncClient(
        timeout=load.request_timeout_s, headers=headers, limits=limits, trust_env=False
    ) as client:

        async def lane() -> None:
            for body in waiting:
                done(await ask(client, url, body, load.request_timeout_s))

        async with asyncio.TaskGroup() as lanes:
            for _ in range(min(load.concurrency, load.requests)):
                lanes.create_task(lane())

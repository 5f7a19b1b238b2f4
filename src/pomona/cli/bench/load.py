"""The load: streamed chat requests against any OpenAI-compatible server, in a closed or an open loop."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx

from pomona.cli.bench.answer import AnswerReader, Outcome
from pomona.cli.bench.asks import Ask, arrivals, asks
from pomona.cli.bench.mixture import Mixture

RECONNECT_AFTER_S = (0.05, 0.2)
"""Pauses before a request whose connection broke is sent again; so many times, then it is a failure."""

Done = Callable[[Outcome], None]
Message = Mapping[str, str]
"""`role` and `content`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and the model to ask of it. `url` ends in /v1 (or whatever stands before /chat/completions)."""

    url: str
    model: str
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`requests` in all. Closed loop: `concurrency` clients that each send their next when the last one has ended.

    Open loop, where there is a `rate`: requests a second that arrive at drawn moments, whatever has been answered.
    """

    concurrency: int
    """Not regarded in an open loop."""
    requests: int
    max_tokens: Mixture
    prompt_words: Mixture
    temperature: float = 0.0
    top_p: float | None = None
    seed: str = "0"
    """The same seed gives the same requests and the same arrivals."""
    request_timeout_s: float = 600.0
    cancel: float = 0.0
    """Share of the requests (0..1) that their client breaks off early."""
    rate: float | None = None
    ignore_eos: bool = False
    """Only `max_tokens` ends an answer; not every server knows this field."""

    @property
    def asks(self) -> Iterator[Ask]:
        return asks(self.seed, self.requests, self.prompt_words, self.max_tokens, self.cancel)


def streamed(messages: Sequence[Message], max_tokens: int, temperature: float = 0.0) -> dict[str, object]:
    """What every request has in its body, but for the model."""
    return {
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def body_of(load: Load, one: Ask, model: str) -> dict[str, object]:
    """The JSON body of one request."""
    body: dict[str, object] = {
        "model": model,
        **streamed([{"role": "user", "content": one.prompt}], one.max_tokens, load.temperature),
    }
    if load.top_p is not None:
        body["top_p"] = load.top_p
    if load.ignore_eos:
        body["ignore_eos"] = True
    return body


class Client:
    """Sends the requests of one load and hands `done` each outcome as it comes, so a cancelled run loses nothing."""

    def __init__(self, http: httpx.AsyncClient, target: Target, load: Load, done: Done) -> None:
        self._http = http
        self._url = f"{target.url.rstrip('/')}/chat/completions"
        self._model = target.model
        self._load = load
        self._done = done

    async def closed(self) -> None:
        waiting = self._load.asks

        async def lane() -> None:
            for one in waiting:
                now = time.perf_counter()
                self._done(await self._ask(one, AnswerReader(now, sent=now)))

        async with asyncio.TaskGroup() as lanes:
            for _ in range(min(self._load.concurrency, self._load.requests)):
                lanes.create_task(lane())

    async def open(self, rate: float) -> None:
        """Every request's clock starts at its planned arrival, so that a client that is late hides no latency."""
        load = self._load
        planned = list(zip(load.asks, arrivals(load.seed, load.requests, rate), strict=True))

        async def arrive(one: Ask, moment: float) -> None:
            await asyncio.sleep(max(0.0, moment - time.perf_counter()))
            self._done(await self._ask(one, AnswerReader(moment, sent=time.perf_counter())))

        async with asyncio.TaskGroup() as requests:
            epoch = time.perf_counter()
            for one, after in planned:
                requests.create_task(arrive(one, epoch + after))

    async def _ask(self, one: Ask, reader: AnswerReader) -> Outcome:
        body, limit_s = body_of(self._load, one, self._model), self._load.request_timeout_s
        return await fetch(self._http, self._url, body, reader, limit_s, leaves_after=one.leaves_after)


async def fetch(
    http: httpx.AsyncClient,
    url: str,
    body: dict[str, object],
    reader: AnswerReader,
    limit_s: float,
    *,
    leaves_after: int | None = None,
) -> Outcome:
    """Sends one request and reads its stream to the end; every trouble of the server is a `Failure`.

    A connection that breaks before the head of the answer is tried again, as the SDKs do it: mlx_lm.server's
    listening queue holds five clients, and more that come at once are cut off. The clock runs on meanwhile.
    """
    try:
        async with asyncio.timeout(limit_s), AsyncExitStack() as stack:
            response = await _open(http, url, stack, body)
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                return reader.failed(f"HTTP {response.status_code}: {text}", time.perf_counter())
            async for line in response.aiter_lines():
                reader.feed(line, time.perf_counter())
                if leaves_after is not None and reader.running and reader.seen >= leaves_after:
                    return reader.left(time.perf_counter())
    except TimeoutError:
        return reader.failed(f"no end within {limit_s:g} s", time.perf_counter())
    except httpx.HTTPError as error:
        return reader.failed(f"{type(error).__name__}: {error}", time.perf_counter())
    return reader.outcome(time.perf_counter())


async def _open(http: httpx.AsyncClient, url: str, stack: AsyncExitStack, body: dict[str, object]) -> httpx.Response:
    for pause_s in RECONNECT_AFTER_S:
        try:
            return await stack.enter_async_context(http.stream("POST", url, json=body))
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            await asyncio.sleep(pause_s)
    return await stack.enter_async_context(http.stream("POST", url, json=body))


async def run_load(target: Target, load: Load, done: Done) -> None:
    """Runs the whole load and calls `done` with each outcome as it comes."""
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    most = load.concurrency if load.rate is None else load.requests
    limits = httpx.Limits(max_connections=most, max_keepalive_connections=most)
    async with httpx.AsyncClient(
        timeout=load.request_timeout_s, headers=headers, limits=limits, trust_env=False
    ) as http:
        client = Client(http, target, load, done)
        await (client.closed() if load.rate is None else client.open(load.rate))

"""Many chat streams at once over HTTP, each read to its end."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Heard:
    """What one stream delivered."""

    deltas: list[str] = field(default_factory=list)
    finish: str | None = None
    completion_tokens: int = 0
    error: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.deltas)


async def listen(client: httpx.AsyncClient, url: str, body: Mapping[str, Any], heard: Heard) -> Heard:
    """Stream one chat completion into `heard`."""
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=streamed) as response:
        if response.status_code != 200:
            heard.error = (await response.aread()).decode()
            return heard
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                heard.error = json.dumps(event["error"])
                return heard
            if event.get("usage"):
                heard.completion_tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                heard.finish = choice["finish_reason"] or heard.finish
                if choice["delta"].get("content"):
                    heard.deltas.append(choice["delta"]["content"])
    return heard


async def listen_all(url: str, bodies: Sequence[Mapping[str, Any]], heard: Sequence[Heard]) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:
        await asyncio.gather(*(listen(client, url, body, each) for body, each in zip(bodies, heard, strict=True)))


async def all_started(heard: Sequence[Heard], deltas: int, within_s: float = 120) -> None:
    """Until every stream has delivered so many deltas."""
    async with asyncio.timeout(within_s):
        while any(len(each.deltas) < deltas for each in heard):
            await asyncio.sleep(0.01)

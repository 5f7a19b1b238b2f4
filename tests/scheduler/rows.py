"""A worker without a model: its tokens are a function of (prompt, seed, position), as a real one's are."""

import struct
import zlib
from collections.abc import Iterable

from pomona.workers.messages import (
    Delta,
    Dropped,
    Finish,
    Limits,
    Request,
    RequestId,
    Sampling,
    TokenEvent,
    Usage,
)


def request(
    id: str,
    *,
    model: str = "m",
    prompt: tuple[int, ...] = (1, 2, 3),
    max_tokens: int = 8,
    seed: int = 0,
    client: str = "",
    priority: int = 0,
    committed: tuple[int, ...] = (),
) -> Request:
    return Request(
        id=RequestId(id),
        model=model,
        prompt=prompt,
        sampling=Sampling(seed=seed),
        limits=Limits(max_tokens=max_tokens),
        client=client,
        priority=priority,
        committed=committed,
    )


def token(request: Request, position: int) -> int:
    return (
        zlib.crc32(struct.pack(f"<{len(request.prompt)}IQI", *request.prompt, request.sampling.seed, position)) % 1000
    )


def answer(request: Request) -> list[int]:
    """All tokens of the undisturbed run."""
    return [token(request, position) for position in range(request.limits.max_tokens)]


def event(request: Request, position: int, width: int) -> TokenEvent:
    """The next `width` tokens behind `position`, with the end if they are the last."""
    end = min(position + width, request.limits.max_tokens)
    tokens = tuple(token(request, place) for place in range(position, end))
    ends = position + len(tokens) >= request.limits.max_tokens
    usage = Usage(len(request.prompt), position + len(tokens))
    return TokenEvent(
        id=request.id,
        position=position,
        tokens=tokens,
        deltas=tuple(Delta("content", f"{token} ") for token in tokens),
        finish=Finish(reason="length", usage=usage) if ends else None,
    )


class Rows:
    """The requests that a worker holds, and how far each is."""

    def __init__(self, max_running: int) -> None:
        self.max_running = max_running
        self.requests: dict[RequestId, Request] = {}
        self.positions: dict[RequestId, int] = {}

    def assign(self, request: Request) -> None:
        assert request.id not in self.requests, f"{request.id} was assigned twice"
        assert len(self.requests) < self.max_running, f"{request.id} is one row too many"
        assert list(request.committed) == answer(request)[: len(request.committed)]
        self.requests[request.id] = request
        self.positions[request.id] = len(request.committed)

    def cancel(self, id: RequestId) -> Dropped:
        self.requests.pop(id, None)
        self.positions.pop(id, None)
        return Dropped(id)

    def step(self, widths: Iterable[int]) -> tuple[TokenEvent, ...]:
        """One event for each row; `widths` says how many tokens each commits."""
        events = []
        for held, width in zip(tuple(self.requests.values()), widths, strict=False):
            made = event(held, self.positions[held.id], width)
            self.positions[held.id] += len(made.tokens)
            if made.finish is not None:
                self.cancel(held.id)
            events.append(made)
        return tuple(events)

    def clear(self) -> None:
        self.requests.clear()
        self.positions.clear()

"""A source of tokens that plays a script: the second implementation of what the gateway submits requests to."""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from pomona.runtime.tally import empty
from pomona.scheduler.client import Rejected
from pomona.scheduler.messages import QUEUE_WAIT_BUCKETS, ModelState, Stats, WorkerSnapshot
from pomona.workers.messages import Delta, Finish, PositionLogprobs, Request, TokenEvent, TokenLogprob, Usage

Step = TokenEvent | Rejected | asyncio.Event
"""A token event comes, the request is rejected, or it waits until somebody sets the event."""

Script = Callable[[Request], Sequence[Step]]
"""What happens to a request, in order."""


def say(
    request: Request,
    *texts: str,
    finish: str = "stop",
    cached: int = 0,
    stop: str | None = None,
    guesses: tuple[int, int] = (0, 0),
) -> list[Step]:
    """One token a text, on the content channel; `reasoning:` in front of a text puts it on that channel.

    `guesses` are the tokens that were accepted and those that were rejected.

    As a worker does, it ends at max_tokens with `length`, and gives the log-probabilities that the request asks for.
    """
    events: list[Step] = []
    spoken = texts[: request.limits.max_tokens]
    reasoned = 0
    for position, text in enumerate(spoken):
        channel, text = ("reasoning", text[10:]) if text.startswith("reasoning:") else ("content", text)
        reasoned += channel == "reasoning"
        events.append(
            TokenEvent(
                id=request.id,
                position=position,
                tokens=(position + 10,),
                deltas=(Delta(channel, text),) if text else (),
                logprobs=()
                if request.logprobs is None or channel == "reasoning"
                else (_logprobs(request.logprobs, text),),
            )
        )
    reason = "length" if len(spoken) < len(texts) or not texts else finish
    usage = Usage(len(request.prompt), len(spoken), cached, reasoned, *guesses)
    end = Finish(reason=reason, usage=usage, stop_text=stop if reason == "stop" else None, message="")
    events.append(TokenEvent(id=request.id, position=len(spoken), finish=end))
    return events


def tell(request: Request, *deltas: Delta, finish: str = "stop") -> list[Step]:
    """One token a delta, of any channel."""
    events: list[Step] = [
        TokenEvent(id=request.id, position=position, tokens=(position + 10,), deltas=(delta,))
        for position, delta in enumerate(deltas)
    ]
    end = Finish(reason=finish, usage=Usage(len(request.prompt), len(deltas)))  # type: ignore[arg-type]
    events.append(TokenEvent(id=request.id, position=len(deltas), finish=end))
    return events


def fail(request: Request, message: str) -> TokenEvent:
    finish = Finish(reason="error", usage=Usage(len(request.prompt), 0), message=message)
    return TokenEvent(id=request.id, position=0, finish=finish)


def _logprobs(count: int, text: str) -> PositionLogprobs:
    chosen = TokenLogprob(10, text.encode(), -0.25)
    return PositionLogprobs(
        chosen, (chosen, *(TokenLogprob(11 + i, b"\xe4\xbd", -2.0 - i) for i in range(count)))[:count]
    )


class ScriptedStream:
    def __init__(self, source: "ScriptedSource", request: Request, script: Sequence[Step]) -> None:
        self._source = source
        self._request = request
        self._script = list(script)
        self.finished = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent:
        while self._script:
            step = self._script.pop(0)
            match step:
                case asyncio.Event():
                    await step.wait()
                case Rejected():
                    self.finished = True
                    raise step
                case TokenEvent():
                    self.finished = step.finish is not None
                    return step
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        self._source.running.add(self._request.id)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.running.discard(self._request.id)
        if not self.finished:
            self._source.cancelled.append(self._request.id)


class ScriptedSource:
    """Plays `script` for every request; remembers what was submitted and what was cancelled."""

    def __init__(self, models: Sequence[ModelState], script: Script) -> None:
        self.models = tuple(models)
        self.connected = True
        self.script = script
        self.answers_stats = True
        self.workers: tuple[WorkerSnapshot, ...] = ()
        self.preempted = 0
        self.waits = empty(QUEUE_WAIT_BUCKETS)
        self.submitted: list[Request] = []
        self.running: set[str] = set()
        self.cancelled: list[str] = []

    def submit(self, request: Request) -> ScriptedStream:
        self.submitted.append(request)
        return ScriptedStream(self, request, self.script(request))

    async def stats(self, timeout_s: float) -> Stats:
        if not self.answers_stats:
            raise TimeoutError
        return Stats(
            ticket=1,
            waiting=0,
            running=len(self.running),
            submitted=len(self.submitted),
            finished=0,
            cancelled=len(self.cancelled),
            refused={"queue_full": 3},
            resumed=0,
            worker_deaths=0,
            workers=self.workers,
            preempted=self.preempted,
            waits=self.waits,
        )

"""What one request gave: an `Answer` with the moment of every delta, a `Failure` with its reason, or a `Left`.

The reader is pure: lines of a server-sent event stream and the moments at which they came go in, one outcome comes
out. All moments are seconds of one monotonic clock.
"""

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A request that ended well. `deltas` are the moments at which text came, at least one, in order."""

    started: float
    """When the request was sent; in an open loop, when it was planned to arrive."""
    deltas: tuple[float, ...]
    finished: float
    """When the server said that the answer was complete (the finish reason)."""
    prompt_tokens: int
    completion_tokens: int
    """Counted by the server; a delta may carry several tokens or a part of one."""
    finish: str
    lag: float = 0.0
    """Seconds between `started` and the moment at which the client really sent it."""
    cached_tokens: int = 0
    """Of the prompt, as the server says."""
    text: str = ""
    accepted_tokens: int = 0
    """Of the completion, that had been guessed, as the server says."""
    rejected_tokens: int = 0
    """Guesses that were verified in vain."""
    opened: float | None = None
    """When the stream told its first event, with text or without; text may be held back where its bytes are no whole
    character yet."""

    @property
    def ttft(self) -> float:
        """Seconds from sending the request to its first text."""
        return self.deltas[0] - self.started

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first: (latency - TTFT) / (tokens - 1); None for a single token."""
        if self.completion_tokens < 2:
            return None
        return (self.finished - self.deltas[0]) / (self.completion_tokens - 1)

    @property
    def whole(self) -> float | None:
        """Seconds per token of the whole answer, prefill included; holding text back cannot make it better."""
        return (self.finished - self.started) / self.completion_tokens if self.completion_tokens else None

    @property
    def gaps(self) -> tuple[float, ...]:
        """Seconds between neighbouring deltas."""
        return tuple(later - earlier for earlier, later in zip(self.deltas, self.deltas[1:], strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request that did not end well; its tokens are not counted."""

    started: float
    finished: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A request that its client broke off, as it was meant to: neither an answer nor a failure."""

    started: float
    deltas: tuple[float, ...]
    finished: float


Outcome = Answer | Failure | Left


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def has_text(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning)


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionTokens(msgspec.Struct):
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptTokens | None = None
    completion_tokens_details: _CompletionTokens | None = None

    @property
    def cached_tokens(self) -> int:
        details = self.prompt_tokens_details
        return 0 if details is None else details.cached_tokens or 0

    @property
    def guessed(self) -> tuple[int, int]:
        """Accepted and rejected."""
        details = self.completion_tokens_details
        if details is None:
            return 0, 0
        return details.accepted_prediction_tokens or 0, details.rejected_prediction_tokens or 0


class _Event(msgspec.Struct):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: object = None


_events = msgspec.json.Decoder(_Event)

REASON_CHARACTERS = 200


def shorten(text: str) -> str:
    """One line of at most REASON_CHARACTERS."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS else line[: REASON_CHARACTERS - 1] + "…"


class AnswerReader:
    """Reads one chat stream: `feed` every line with the moment it came, then ask for the `outcome`."""

    def __init__(self, started: float, *, sent: float | None = None) -> None:
        self._started = started
        self._lag = 0.0 if sent is None else max(0.0, sent - started)
        self._deltas: list[float] = []
        self._text: list[str] = []
        self._opened: float | None = None
        self._finished: float | None = None
        self._finish: str | None = None
        self._usage: _Usage | None = None
        self._error: str | None = None

    def feed(self, line: str, now: float) -> None:
        """Takes one line without its end; comments, blank lines and other fields than `data` carry nothing."""
        if self._error is not None or not line.startswith("data:"):
            return
        payload = line[len("data:") :].strip()
        if payload in ("", "[DONE]"):
            return
        try:
            event = _events.decode(payload)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            self._error = shorten(f"unreadable event ({error}): {payload}")
            return
        if event.error:
            self._error = shorten("the stream carried an error: " + msgspec.json.encode(event.error).decode())
            return
        if event.usage is not None:
            self._usage = event.usage
        for choice in event.choices:
            self._opened = now if self._opened is None else self._opened
            if choice.delta is not None and choice.delta.has_text:
                self._deltas.append(now)
                self._text.append(choice.delta.content or "")
            if choice.finish_reason is not None:
                self._finish, self._finished = choice.finish_reason, now

    @property
    def seen(self) -> int:
        """Deltas with text so far."""
        return len(self._deltas)

    @property
    def moments(self) -> tuple[float, ...]:
        """When they came."""
        return tuple(self._deltas)

    @property
    def running(self) -> bool:
        """The stream has told neither an error nor its finish reason."""
        return self._error is None and self._finish is None

    def failed(self, reason: str, now: float) -> Failure:
        """The request came to nothing at `now`, whatever had been read."""
        return Failure(started=self._started, finished=now, reason=shorten(reason))

    def left(self, now: float) -> Left:
        """The client broke it off at `now`."""
        return Left(started=self._started, deltas=tuple(self._deltas), finished=now)

    def outcome(self, now: float) -> Outcome:
        """What the stream amounts to when it has ended at `now`."""
        if self._error is not None:
            return self.failed(self._error, now)
        if self._finish is None or self._finished is None:
            return self.failed("the stream ended without a finish_reason", now)
        if not self._deltas:
            return self.failed(f"no text before finish {self._finish!r}", now)
        if self._usage is None:
            return self.failed("no usage: tokens cannot be counted", now)
        accepted, rejected = self._usage.guessed
        return Answer(
            started=self._started,
            deltas=tuple(self._deltas),
            finished=self._finished,
            prompt_tokens=self._usage.prompt_tokens,
            completion_tokens=self._usage.completion_tokens,
            finish=self._finish,
            lag=self._lag,
            cached_tokens=self._usage.cached_tokens,
            text="".join(self._text),
            accepted_tokens=accepted,
            rejected_tokens=rejected,
            opened=self._opened,
        )

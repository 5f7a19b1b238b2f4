"""A client of the chat API for people: typed pieces of an answer, and one line for whatever fails."""

from collections.abc import Generator, Iterator, Sequence
from typing import Literal, NamedTuple, Self

import httpx
import msgspec

from pomona.refusal import Refusal

Kind = Literal["content", "reasoning"]
TIMEOUT = httpx.Timeout(300.0, connect=5.0)
"""Seconds; a server that works sends a sign of life more often than this."""


class Turn(NamedTuple):
    role: Literal["system", "user", "assistant"]
    content: str


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Problem(msgspec.Struct):
    message: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Problem | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class ChatClient:
    """One server; every method raises Refusal with one line if it cannot be reached or refuses."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(headers=headers, timeout=TIMEOUT)

    def first_model(self) -> str:
        with self._failures():
            answer = self._http.get(f"{self.url}/v1/models")
            if answer.status_code != httpx.codes.OK:
                raise self._refused(answer)
            models = msgspec.json.decode(answer.content, type=_Models).data
        if not models:
            raise Refusal(f"{self.url} serves no model; name one: pomona serve MODEL")
        return models[0].id

    def stream(
        self, model: str, turns: Sequence[Turn], temperature: float | None, max_tokens: int | None
    ) -> Generator[tuple[Kind, str]]:
        """Pieces of the answer as they come; closing the iterator stops the answer at the server."""
        body: dict[str, object] = {"model": model, "messages": [turn._asdict() for turn in turns], "stream": True}
        if temperature is not None:
            body["temperature"] = temperature
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        with self._failures(), self._http.stream("POST", f"{self.url}/v1/chat/completions", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
                raise self._refused(answer)
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    yield from _pieces(line.removeprefix("data:").strip())

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refused(self, answer: httpx.Response) -> Refusal:
        try:
            problem = msgspec.json.decode(answer.content, type=_Chunk).error
        except msgspec.DecodeError:
            problem = None
        said = problem.message if problem is not None and problem.message else answer.reason_phrase
        mend = "; set POMONA_API_KEY" if answer.status_code == httpx.codes.UNAUTHORIZED else ""
        return Refusal(f"{self.url} answered {answer.status_code}: {said}{mend}")

    def _failures(self) -> "_Failures":
        return _Failures(self.url)


class _Failures:
    """Turns what goes wrong between here and the server into one line."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        match error:
            case httpx.InvalidURL() | httpx.UnsupportedProtocol():
                raise Refusal(f"{self._url} is no URL; write --url http://HOST:PORT") from error
            case httpx.ConnectError() | httpx.ConnectTimeout():
                raise Refusal(f"no server answers at {self._url}; start one: pomona serve") from error
            case httpx.TimeoutException():
                raise Refusal(f"{self._url} has been silent for {TIMEOUT.read:.0f} s; see its log") from error
            case httpx.TransportError():
                raise Refusal(f"the connection to {self._url} broke off ({error}); see the server's log") from error
            case msgspec.DecodeError():
                raise Refusal(f"{self._url} does not speak the chat API ({error}); mend --url") from error


def _pieces(data: str) -> Iterator[tuple[Kind, str]]:
    if data == "[DONE]":
        return
    chunk = msgspec.json.decode(data, type=_Chunk)
    if chunk.error is not None:
        raise Refusal(f"the answer failed: {chunk.error.message}")
    for choice in chunk.choices:
        if reasoning := choice.delta.reasoning_content or choice.delta.reasoning:
            yield "reasoning", reasoning
        if choice.delta.content:
            yield "content", choice.delta.content

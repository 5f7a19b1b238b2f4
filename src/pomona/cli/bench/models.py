"""Which models a server offers."""

import httpx
import msgspec

from pomona.cli.bench.answer import shorten
from pomona.cli.bench.load import Target
from pomona.cli.bench.problem import BenchError

PROBE_S = 10.0


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: tuple[_Model, ...]


def find_target(url: str, model: str | None, key: str | None) -> Target:
    """The server at `url` and `model`, or the first model that it lists.

    A URL without a path gets /v1. Raises BenchError if nothing answers there or no model can be found.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise BenchError(f"--url {url}: {error}; write it like http://127.0.0.1:8420/v1") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BenchError(f"--url {url}: not a web address; write it like http://127.0.0.1:8420/v1")
    base = str(parsed).rstrip("/") if parsed.path != "/" else str(parsed.copy_with(path="/v1"))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        response = httpx.get(f"{base}/models", headers=headers, timeout=PROBE_S, trust_env=False)
    except httpx.HTTPError as error:
        if model is not None and isinstance(error, httpx.RemoteProtocolError):
            return Target(url=base, model=model, key=key)  # some servers fail on their model list alone
        reason = str(error) or type(error).__name__
        raise BenchError(f"nothing answers at {base} ({reason}): start the server, or name it with --url") from error
    if response.status_code in (401, 403):
        raise BenchError(f"{base} asks for an API key: put it into POMONA_API_KEYS")
    if model is not None:
        return Target(url=base, model=model, key=key)
    try:
        listed = msgspec.json.decode(response.content, type=_Models).data
    except msgspec.DecodeError as error:
        raise BenchError(f"{base}/models gives no list ({shorten(response.text)}): name the --model") from error
    if not listed:
        raise BenchError(f"{base}/models lists no model: name the --model")
    return Target(url=base, model=listed[0].id, key=key)

"""Log-probabilities in OpenAI's two shapes."""

import codecs

from pomona.gateway.body import JsonObject, JsonValue
from pomona.workers.messages import PositionLogprobs, TokenLogprob


def token_text(raw: bytes) -> str:
    """The token as text; bytes that are no whole UTF-8 become replacement characters."""
    return raw.decode("utf-8", errors="replace")


def _entry(token: TokenLogprob) -> JsonObject:
    return {"token": token_text(token.bytes), "logprob": token.logprob, "bytes": list(token.bytes)}


def chat_logprobs(positions: tuple[PositionLogprobs, ...]) -> list[JsonValue]:
    """Entries of `logprobs.content`, and of `logprobs` in the Responses API."""
    return [{**_entry(at.chosen), "top_logprobs": [_entry(token) for token in at.top]} for at in positions]


class CompletionLogprobs:
    """The four parallel lists of the Completions API; offsets count characters of the text, across calls."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def render(self, positions: tuple[PositionLogprobs, ...]) -> JsonObject:
        tokens: list[JsonValue] = []
        chosen: list[JsonValue] = []
        top: list[JsonValue] = []
        offsets: list[JsonValue] = []
        for at in positions:
            tokens.append(_key(at.chosen.bytes))
            chosen.append(at.chosen.logprob)
            top.append({_key(token.bytes): token.logprob for token in (*at.top, at.chosen)})
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(at.chosen.bytes))
        return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}


def _key(raw: bytes) -> str:
    """Text, or `bytes:\\xe4\\xbd` for a part of a character, so that keys stay distinct."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

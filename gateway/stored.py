"""Responses that a later request may go on from: in memory, bounded, each visible to its own API key only."""

from collections import OrderedDict
from dataclasses import dataclass

from pomona.gateway.body import JsonObject, encode_json

MAX_RESPONSES = 1000
MAX_BYTES = 64 * 1024 * 1024
"""Of JSON, over all stored responses."""


@dataclass(frozen=True)
class StoredResponse:
    owner: str
    response: JsonObject
    turns: list[JsonObject]
    """The whole conversation without instructions, the answer included."""
    size: int = 0


class StoredResponses:
    """Least recently used leave first."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._held: OrderedDict[str, StoredResponse] = OrderedDict()
        self._bytes = 0

    def put(self, owner: str, response: JsonObject, turns: list[JsonObject]) -> None:
        size = len(encode_json(response)) + len(encode_json({"turns": list(turns)}))
        self._held[str(response["id"])] = StoredResponse(owner, response, turns, size)
        self._bytes += size
        while len(self._held) > self._max_responses or self._bytes > self._max_bytes:
            _, dropped = self._held.popitem(last=False)
            self._bytes -= dropped.size

    def get(self, owner: str, response_id: str) -> StoredResponse | None:
        held = self._held.get(response_id)
        if held is None or held.owner != owner:
            return None
        self._held.move_to_end(response_id)
        return held

    def delete(self, owner: str, response_id: str) -> bool:
        if self.get(owner, response_id) is None:
            return False
        self._bytes -= self._held.pop(response_id).size
        return True

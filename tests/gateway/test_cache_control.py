"""Anthropic's `cache_control`: where it may stand, and what it does to the count of tokens."""

from typing import Any

import pytest

from pomona.config import CacheConfig
from tests.gateway.conftest import Gateway, GatewayFactory, JsonBody, Serve, events_of
from tests.gateway.test_anthropic_sdk import client_of
from tests.support.scripted_source import say

URL = "/v1/messages"
MARK: JsonBody = {"type": "ephemeral"}
ASK: JsonBody = {"model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}]}


def _text(mark: object) -> JsonBody:
    return {"type": "text", "text": "Hi", "cache_control": mark}


def _after_a_tool(*results: JsonBody, use: JsonBody | None = None) -> JsonBody:
    called = {"type": "tool_use", "id": "t", "name": "f", "input": {}, **(use or {})}
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [called]}]
    return {"messages": [*turns, {"role": "user", "content": list(results)}]}


def _result(**fields: object) -> JsonBody:
    return {"type": "tool_result", "tool_use_id": "t", "content": "42", **fields}


def everywhere(mark: object) -> list[tuple[str, JsonBody]]:
    """The places of a mark, and the fields of a request that has it there."""
    return [
        ("cache_control", {"cache_control": mark}),
        ("system[0].cache_control", {"system": [_text(mark)]}),
        (
            "tools[1].cache_control",
            {"tools": [{"name": "f", "input_schema": {}}, {"name": "g", "input_schema": {}, "cache_control": mark}]},
        ),
        ("messages[0].content[0].cache_control", {"messages": [{"role": "user", "content": [_text(mark)]}]}),
        (
            "messages[1].content[0].cache_control",
            {"messages": [*ASK["messages"], {"role": "assistant", "content": [_text(mark)]}, *ASK["messages"]]},
        ),
        ("messages[1].content[0].cache_control", _after_a_tool(_result(), use={"cache_control": mark})),
        ("messages[2].content[1].cache_control", _after_a_tool(_result(), _result(cache_control=mark))),
        ("messages[2].content[0].content[0].cache_control", _after_a_tool(_result(content=[_text(mark)]))),
    ]


PLACES = range(len(everywhere(MARK)))
GOOD: list[Any] = [None, MARK, MARK | {"ttl": "5m"}, MARK | {"ttl": "1h", "scope": "global"}, MARK | {"ttl": None}]
BAD: list[Any] = ["ephemeral", {}, [], True, {"type": "persistent"}, {"ttl": "5m"}]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mark", GOOD)
async def test_it_is_taken_wherever_it_may_stand_and_changes_no_token(
    gateway: Gateway, place: int, mark: object
) -> None:
    _, with_mark = everywhere(mark)[place]
    _, without = everywhere(None)[place]
    for fields in (with_mark, without):
        assert (await gateway.http.post(URL, json=ASK | fields)).status_code == 200
    marked, plain = gateway.source.submitted
    assert marked.prompt == plain.prompt


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("path", [URL, URL + "/count_tokens"])
async def test_another_shape_is_refused_with_its_place(gateway: Gateway, place: int, path: str) -> None:
    for mark in BAD:
        where, fields = everywhere(mark)[place]
        response = await gateway.http.post(path, json=ASK | fields)
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(f'{where} must be {{"type": "ephemeral"}}')
    where, fields = everywhere(MARK | {"ttl": "2h"})[place]
    refused = (await gateway.http.post(path, json=ASK | fields)).json()
    assert refused["error"]["message"] == f'{where}.ttl must be "5m" or "1h"'


@pytest.mark.parametrize(
    ("marked", "cache", "created"),
    [
        (True, CacheConfig(), True),
        (True, CacheConfig(ram_bytes=0), True),
        (True, CacheConfig(enabled=False), True),
        (True, CacheConfig(enabled=False, ram_bytes=0), False),
        (False, CacheConfig(), False),
    ],
)
async def test_what_is_computed_and_kept_for_a_marked_request_counts_as_written(
    open_gateway: GatewayFactory, marked: bool, cache: CacheConfig, created: bool
) -> None:
    gateway = open_gateway(lambda request: say(request, "a", cached=4), cache=cache)
    body = ASK | ({"cache_control": MARK} if marked else {})
    usage = (await gateway.http.post(URL, json=body)).json()["usage"]
    computed = len(gateway.source.submitted[0].prompt) - 4
    assert usage == {
        "input_tokens": 0 if created else computed,
        "cache_creation_input_tokens": computed if created else 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 1,
    }


async def test_a_stream_ends_with_the_counts_of_the_whole_answer(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(lambda request: say(request, "a", cached=4))
    body = ASK | {"cache_control": MARK}
    whole = (await gateway.http.post(URL, json=body)).json()["usage"]
    events = events_of((await gateway.http.post(URL, json=body | {"stream": True})).text)
    start = events[0]["message"]["usage"]
    (last,) = [event["usage"] for event in events if event["type"] == "message_delta"]
    assert last == whole
    prompt = len(gateway.source.submitted[0].prompt)
    for usage in (start, last):
        kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        assert sum(usage[kind] for kind in kinds) == prompt


async def test_the_sdk_warms_the_cache(open_gateway: GatewayFactory, serve: Serve) -> None:
    gateway = open_gateway(lambda request: say(request))
    served = await serve(gateway)
    async with client_of(served.url) as client:
        warm = await client.messages.create(
            model="tiny",
            max_tokens=0,
            system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            messages=[{"role": "user", "content": "Hi"}],
        )
        streamed = await client.messages.create(
            model="tiny", max_tokens=0, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        kinds = [event.type async for event in streamed]
    assert [request.limits.max_tokens for request in gateway.source.submitted] == [0, 0]
    assert (warm.content, warm.stop_reason, warm.usage.output_tokens) == ([], "max_tokens", 0)
    assert warm.usage.cache_creation_input_tokens == len(gateway.source.submitted[0].prompt)
    assert kinds == ["message_start", "message_delta", "message_stop"]

"""Who shares stored prefixes with whom."""

import itertools
import logging

import pytest

from pomona.gateway.cache_salt import salt_of, tenant_of
from tests.gateway.conftest import GatewayFactory, JsonBody

TURNS: JsonBody = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
ROUTES: list[tuple[str, JsonBody]] = [
    ("/v1/chat/completions", TURNS),
    ("/v1/messages", TURNS),
    ("/v1/completions", {"model": "tiny", "prompt": "Hi", "max_tokens": 5}),
    ("/v1/responses", {"model": "tiny", "input": "Hi", "max_output_tokens": 5}),
]
KEYS = ("first-secret", "second-secret")


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_each_key_is_a_tenant_of_its_own_where_the_configuration_says_so(
    open_gateway: GatewayFactory, path: str, body: JsonBody
) -> None:
    gateway = open_gateway(api_keys=KEYS, cache_salt_per_key=True)
    for key, own in itertools.product(KEYS, ({}, {"cache_salt": "tenant"}, {"cache_salt": tenant_of(b"first-secret")})):
        for _ in range(2):
            await gateway.http.post(path, json=body | own, headers={"x-api-key": key})
    salts = [request.cache_salt for request in gateway.source.submitted]
    assert salts[::2] == salts[1::2]
    assert len(set(salts)) == 6
    assert not any("secret" in salt for salt in salts)


async def test_keys_share_what_is_stored_otherwise(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(api_keys=KEYS)
    for key, own in itertools.product(KEYS, ({}, {"cache_salt": "tenant"})):
        await gateway.http.post(ROUTES[0][0], json=TURNS | own, headers={"x-api-key": key})
    assert [request.cache_salt for request in gateway.source.submitted] == ["", "tenant"] * 2


async def test_without_keys_there_is_one_tenant(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(cache_salt_per_key=True)
    await gateway.http.post(ROUTES[0][0], json=TURNS | {"cache_salt": "mine"})
    assert gateway.source.submitted[0].cache_salt == "mine"


async def test_a_tenant_outlasts_a_restart_and_another_order_of_the_keys(
    open_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture
) -> None:
    salts = set()
    with caplog.at_level(logging.DEBUG):
        for keys in (KEYS, KEYS[::-1], ("third", *KEYS)):
            gateway = open_gateway(api_keys=keys, cache_salt_per_key=True)
            await gateway.http.post(ROUTES[0][0], json=TURNS, headers={"x-api-key": KEYS[0]})
            salts.add(gateway.source.submitted[0].cache_salt)
    (salt,) = salts
    assert salt == salt_of(tenant_of(KEYS[0].encode()), "")
    assert salt not in caplog.text
    assert "secret" not in caplog.text

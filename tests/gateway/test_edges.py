"""What surrounds every route: keys, the body limit, broken bodies, routes that do not exist."""

import json
import logging
from collections.abc import AsyncIterator

import pytest

from pomona.workers.messages import Request
from tests.gateway.conftest import Gateway, GatewayFactory, JsonBody
from tests.support.scripted_source import Step

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
ASK: JsonBody = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer nope"}, 401),
        ({"authorization": "Basic second"}, 401),
        ({"x-api-key": "firs"}, 401),
        ({"x-api-key": "schlüssel".encode()}, 401),
        ({"authorization": "Bearer first"}, 200),
        ({"authorization": "bearer second"}, 200),
        ({"x-api-key": "second"}, 200),
        ({"authorization": "Bearer nope", "x-api-key": "first"}, 200),
    ],
)
async def test_any_of_the_keys_opens_in_either_header(
    open_gateway: GatewayFactory, headers: dict[str, str], status: int
) -> None:
    gateway = open_gateway(api_keys=("first", "second"))
    for path in (CHAT, MESSAGES):
        assert (await gateway.http.post(path, json=ASK, headers=headers)).status_code == status
    for path in ("/v1/models", "/metrics", "/admin/status"):
        assert (await gateway.http.get(path, headers=headers)).status_code == status


async def test_health_is_open_and_each_api_refuses_in_its_own_shape(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(api_keys=("first",))
    for path in ("/health", "/health/live", "/health/ready"):
        assert (await gateway.http.get(path)).status_code == 200
    openai = (await gateway.http.post(CHAT, json=ASK)).json()
    assert openai["error"]["type"] == "authentication_error"
    assert openai["error"]["code"] == "invalid_api_key"
    for path, headers in ((MESSAGES, {}), ("/v1/models", {"anthropic-version": "2023-06-01"})):
        body = (await gateway.http.request("POST" if not headers else "GET", path, headers=headers)).json()
        assert body["type"] == "error"
        assert body["error"]["type"] == "authentication_error"
        assert body["request_id"].startswith("req_")


async def test_keys_are_not_logged_and_name_nobody(
    open_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = open_gateway(api_keys=("first-secret", "second-secret"))
    with caplog.at_level(logging.DEBUG):
        await gateway.http.post(CHAT, json=ASK, headers={"x-api-key": "second-secret"})
        await gateway.http.post(CHAT, json=ASK, headers={"x-api-key": "wrong-secret"})
    assert "secret" not in caplog.text
    assert gateway.source.submitted[0].client == "key-1"


async def _chunks(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // 100):
        yield b" " * 100


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_beyond_the_limit_is_413(open_gateway: GatewayFactory, path: str, announced: bool) -> None:
    gateway = open_gateway(max_body_bytes=1000)
    body = b" " * 2000 if announced else _chunks(2000)
    response = await gateway.http.post(path, content=body)
    assert ("content-length" in response.request.headers) == announced
    assert response.status_code == 413
    error = response.json()["error"]
    assert error["type"] == ("invalid_request_error" if path == CHAT else "request_too_large")
    assert "1000" in error["message"]
    assert (await gateway.http.post(path, json=ASK)).status_code == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"model": "tiny",}', "line 1 column 18"),
        (b"", "line 1 column 1"),
        (b'{"a": NaN}', "NaN"),
        (b'"\xff"', "UTF-8"),
        (b'{"model": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "nested"),
        (b"[]", "object"),
        (b"{}", "model is required"),
        (b'{"model": "tiny", "messages": [], "seed": ' + b"9" * 5000 + b"}", "JSON"),
    ],
)
async def test_a_broken_body_is_told_where(gateway: Gateway, body: bytes, says: str) -> None:
    for path in (CHAT, MESSAGES):
        response = await gateway.http.post(path, content=body)
        assert response.status_code == 400
        assert says in response.json()["error"]["message"]


@pytest.mark.parametrize("depth", [100, 500, 900, 990])
async def test_deep_json_is_served_or_refused_and_never_a_bug(gateway: Gateway, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    body = json.dumps({"model": "tiny", "input": "Hi"})[:-1] + f', "metadata": {{"a": {deep}}}}}'
    response = await gateway.http.post("/v1/responses", content=body)
    assert response.status_code in (200, 400)


async def test_routes_and_methods_that_do_not_exist_are_told_in_json(gateway: Gateway) -> None:
    missing = await gateway.http.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "route_not_found")
    wrong = await gateway.http.get(CHAT)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
    anthropic = await gateway.http.get(MESSAGES)
    assert (anthropic.status_code, anthropic.json()["type"]) == (405, "error")


async def test_a_bug_is_500_without_a_traceback(open_gateway: GatewayFactory) -> None:
    def script(request: Request) -> list[Step]:
        raise ZeroDivisionError("secret detail")

    gateway = open_gateway(script)
    with pytest.raises(ZeroDivisionError):  # it reaches the server, which logs it
        await gateway.http.post(CHAT, json=ASK)
    response = await gateway.forgiving.post(CHAT, json=ASK)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["code"] == "internal"


async def test_every_answer_names_its_request(gateway: Gateway) -> None:
    ids = {(await gateway.http.get("/health/live")).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


async def test_models_have_two_shapes(gateway: Gateway) -> None:
    listed = (await gateway.http.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert listed["data"][0]["max_model_len"] == 256
    assert (await gateway.http.get("/v1/models/org/tiny-2")).json()["id"] == "org/tiny-2"
    version = {"anthropic-version": "2026-10-21"}
    other = (await gateway.http.get("/v1/models", headers=version)).json()
    assert (other["has_more"], other["first_id"], other["last_id"]) == (False, "tiny", "org/tiny-2")
    assert other["data"][0]["type"] == "model"
    assert (await gateway.http.get("/v1/models/none")).json()["error"]["code"] == "model_not_found"
    assert (await gateway.http.get("/v1/models/none", headers=version)).json()["error"]["type"] == "not_found_error"


async def test_a_model_that_failed_says_so(gateway: Gateway) -> None:
    from pomona.scheduler.messages import ModelState

    gateway.source.models = (ModelState(id="tiny", state="failed", detail="model.safetensors is cut short"),)
    response = await gateway.http.post(CHAT, json=ASK)
    assert response.status_code == 503
    assert "cut short" in response.json()["error"]["message"]
    assert json.loads(response.headers["retry-after"]) > 0


async def test_a_broken_tokeniser_is_named(
    open_gateway: GatewayFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("broken")
    gateway = open_gateway(model_path=str(folder))
    response = await gateway.http.post(CHAT, json=ASK)
    assert response.status_code == 503
    assert "tokeniser of model tiny" in response.json()["error"]["message"]
    assert str(folder) not in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        (CHAT, {"messages": ASK["messages"], "max_tokens": 0}, ("", "length")),
        (CHAT, {"messages": ASK["messages"], "max_completion_tokens": 0}, ("", "length")),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 0}, ("", "length")),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 0, "echo": True}, ("Hi", "length")),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 0}, ("", "max_output_tokens")),
        (MESSAGES, {"messages": ASK["messages"], "max_tokens": 0}, ("", "max_tokens")),
    ],
)
async def test_a_warm_up_reads_the_prompt_and_says_nothing(
    gateway: Gateway, path: str, body: JsonBody, says: tuple[str, str]
) -> None:
    response = await gateway.http.post(path, json={"model": "tiny", **body})
    assert response.status_code == 200, response.text
    assert gateway.source.submitted[0].limits.max_tokens == 0
    answer = response.json()
    match path:
        case "/v1/messages":
            said = ("".join(block["text"] for block in answer["content"]), answer["stop_reason"])
        case "/v1/responses":
            (item,) = answer["output"]
            said = (item["content"][0]["text"], answer["incomplete_details"]["reason"])
        case "/v1/completions":
            said = (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"])
        case _:
            said = (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"])
    assert said == says
    usage = answer["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 0

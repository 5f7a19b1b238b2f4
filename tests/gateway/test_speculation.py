"""Which guesses a request asks for, what it is told of them, and that every route takes the same field."""

from typing import Literal, get_args, get_type_hints

import pytest

from pomona.config import DEEPEST, Method, SpeculationConfig
from pomona.gateway.sampling import SamplerFields
from pomona.gateway.speculation import SpeculationFields
from pomona.runtime.wire import replace
from pomona.workers.messages import Request, Speculation
from pomona.workers.speculation import depth
from tests.gateway.conftest import Gateway, GatewayFactory, JsonBody, events_of
from tests.support.scripted_source import Step, say

TURNS: JsonBody = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
ROUTES: list[tuple[str, JsonBody]] = [
    ("/v1/chat/completions", TURNS),
    ("/v1/messages", TURNS),
    ("/v1/completions", {"model": "tiny", "prompt": "Hi", "max_tokens": 5}),
    ("/v1/responses", {"model": "tiny", "input": "Hi", "max_output_tokens": 5}),
]
CHAT = ROUTES[0][0]
COUNT = "/v1/messages/count_tokens"


def has(gateway: Gateway, *methods: Method) -> None:
    """The workers of each model have these methods."""
    gateway.source.models = tuple(replace(state, methods=methods) for state in gateway.source.models)


async def asked(gateway: Gateway, speculation: JsonBody | None, path: str = CHAT) -> Speculation:
    body = dict(ROUTES)[path] | ({} if speculation is None else {"speculation": speculation})
    response = await gateway.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return gateway.source.submitted[-1].speculation


def test_the_same_methods_and_depths_are_known_everywhere() -> None:
    words = {"auto", "off", *get_args(Method)}
    assert set(get_args(get_type_hints(SpeculationConfig)["method"])) == words
    assert set(get_args(get_args(get_type_hints(SpeculationFields)["method"])[0])) == words
    assert DEEPEST == depth.DEEPEST


@pytest.mark.parametrize("path", dict(ROUTES))
async def test_every_route_takes_it(gateway: Gateway, path: str) -> None:
    has(gateway, "ngram", "mtp")
    assert await asked(gateway, {"method": "mtp", "depth": 3}, path) == Speculation(method="mtp", depth=3)
    assert await asked(gateway, {"method": "off"}, path) == Speculation(method="off")
    assert await asked(gateway, {"depth": DEEPEST}, path) == Speculation(depth=DEEPEST)
    assert await asked(gateway, {}, path) == await asked(gateway, None, path) == Speculation(method="auto", depth=None)


async def test_a_request_goes_before_its_models_configuration(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(speculation=SpeculationConfig(method="off", depth=2))
    has(gateway, "ngram")
    assert await asked(gateway, None) == Speculation(method="off", depth=2)
    assert await asked(gateway, {"method": "ngram"}) == Speculation(method="ngram", depth=2)
    assert await asked(gateway, {"method": "auto", "depth": 5}) == Speculation(method="auto", depth=5)
    assert await asked(gateway, {"depth": 1}) == Speculation(method="off", depth=1)
    await gateway.http.post(CHAT, json=TURNS | {"model": "org/tiny-2"})
    assert gateway.source.submitted[-1].speculation == Speculation()


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"method": "luck"}, "speculation.method"),
        ({"method": 1}, "speculation.method"),
        ({"depth": 0}, "speculation.depth"),
        ({"depth": DEEPEST + 1}, "speculation.depth"),
        ({"depth": True}, "speculation.depth"),
        ({"depth": 2.0}, "speculation.depth"),
        ({"deep": 2}, "speculation.deep"),
        ("ngram", "speculation"),
    ],
)
async def test_what_is_not_understood_is_refused_by_name(gateway: Gateway, value: object, param: str) -> None:
    for path, body in (*ROUTES, (COUNT, TURNS)):
        response = await gateway.http.post(path, json=body | {"speculation": value})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["message"].startswith(f"{param}: ")
        assert error.get("param", param) == param
    assert gateway.source.submitted == []


@pytest.mark.parametrize(
    ("method", "methods", "missing"),
    [
        ("draft", ("ngram", "mtp"), "no draft model is configured for it (models.speculation.draft_model)"),
        ("mtp", ("ngram", "draft"), "its weights hold no prediction head (MTP)"),
        ("layers", ("ngram",), "no number of layers is configured for it (models.speculation.layers)"),
        ("grammar", (), "its caches cannot take back what was refused"),
        ("ngram", (), "its caches cannot take back what was refused"),
        ("draft", (), "its caches cannot take back what was refused"),
        ("draft", None, "no draft model is configured for it (models.speculation.draft_model)"),
        ("layers", None, "no number of layers is configured for it (models.speculation.layers)"),
    ],
)
async def test_a_method_that_the_model_lacks_is_refused_with_what_is_missing(
    gateway: Gateway, method: Method, methods: tuple[Method, ...] | None, missing: str
) -> None:
    if methods is not None:
        has(gateway, *methods)
    for path, body in ROUTES:
        response = await gateway.http.post(path, json=body | {"speculation": {"method": method}})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["message"] == f"speculation.method {method!r}: model tiny does not have it: {missing}"
        assert error.get("param", "speculation.method") == "speculation.method"
    assert gateway.source.submitted == []


async def test_a_head_that_the_configuration_leaves_out_is_not_said_to_be_missing(
    open_gateway: GatewayFactory,
) -> None:
    gateway = open_gateway(speculation=SpeculationConfig(method="off"))
    has(gateway, "ngram")
    response = await gateway.http.post(CHAT, json=TURNS | {"speculation": {"method": "mtp"}})
    assert response.status_code == 400
    assert "models.speculation.method is off" in response.json()["error"]["message"]


@pytest.mark.parametrize("method", ["auto", "off"])
async def test_a_model_without_any_method_may_be_asked_for_none(
    gateway: Gateway, method: Literal["auto", "off"]
) -> None:
    has(gateway)
    assert await asked(gateway, {"method": method}) == Speculation(method=method)


async def test_what_only_a_worker_knows_is_left_to_it_until_one_was_ready(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(speculation=SpeculationConfig(draft_model="/small", layers=3))
    for method in get_args(Method):
        assert (await asked(gateway, {"method": method})).method == method


async def test_a_model_tells_its_methods(gateway: Gateway) -> None:
    (first, _) = (await gateway.http.get("/v1/models")).json()["data"]
    assert first["speculation_methods"] is None
    has(gateway, "ngram", "layers")
    assert (await gateway.http.get("/v1/models/tiny")).json()["speculation_methods"] == ["ngram", "layers"]


async def test_only_a_given_seed_binds_drafts_to_its_tokens(gateway: Gateway) -> None:
    for own in ({}, {"seed": 7}, {"seed": 0}):
        await gateway.http.post(CHAT, json=TURNS | own)
    assert [request.sampling.repeatable for request in gateway.source.submitted] == [False, True, True]
    assert "repeatable" not in SamplerFields.model_fields


def guessing(request: Request) -> list[Step]:
    return say(request, "Hello", " world", guesses=(3, 2))


async def test_chat_and_completions_tell_what_was_guessed_over_all_choices(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(guessing)
    for path, body in (ROUTES[0], ROUTES[2]):
        details = (await gateway.http.post(path, json=body | {"n": 2})).json()["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] == 6
        assert details["rejected_prediction_tokens"] == 4
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        last = events_of((await gateway.http.post(path, json=body | stream)).text)[-1]
        assert last["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 3
        assert last["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] == 2


@pytest.mark.parametrize(
    ("route", "reasoning"),
    [(ROUTES[1], "thinking_tokens"), (ROUTES[3], "reasoning_tokens")],
    ids=lambda value: value[0],
)
async def test_messages_and_responses_tell_it_where_there_is_something_to_tell(
    open_gateway: GatewayFactory, route: tuple[str, JsonBody], reasoning: str
) -> None:
    path, body = route
    usage = (await open_gateway(guessing).http.post(path, json=body)).json()["usage"]
    expected = {reasoning: 0, "accepted_prediction_tokens": 3, "rejected_prediction_tokens": 2}
    assert usage["output_tokens_details"] == expected
    assert usage["output_tokens"] == 2
    for guesses, told in (((0, 0), False), ((0, 1), True), ((1, 0), True)):
        gateway = open_gateway(lambda request, guesses=guesses: say(request, "Hello", guesses=guesses))
        usage = (await gateway.http.post(path, json=body)).json()["usage"]
        assert ("accepted_prediction_tokens" in usage.get("output_tokens_details", {})) is told

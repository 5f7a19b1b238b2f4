"""Calls in many dialects through the real engine and every API: what the model writes is what the client gets."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import jsonschema
import pytest

from tests.gateway.conftest import Gateway, GatewayFactory
from tests.gateway.test_reasoning_matrix import CONTEXT, THOUGHT, Speaker
from tests.gateway.tool_apis import CHAT, CUT, MESSAGES, REASONS, RESPONSES, SCHEMA, STOPPED, Api, Got, got
from tests.support.formats import ASSISTANT, DIALECTS, HARMONY, Dialect

SPELLED = "<think>kept</think> <tool_call>{}</tool_call> <|channel>thought [TOOL_CALLS] <|end|>"
"""What a call of JSON may say, whatever it looks like."""
JSON = json.dumps({"name": "weather", "arguments": {"city": SPELLED}})


class Caller(NamedTuple):
    dialect: Dialect
    one: str
    """A call as it writes it, with `{}` for its text."""
    text: str
    city: str = "Oslo"
    several: bool = True
    """More calls may follow."""
    header: str = ""
    """What it goes on with where it is made to call."""


def plain(mentions: str, marks: tuple[str, ...] = ()) -> Dialect:
    return Dialect("think", ASSISTANT, "", "{}", marks=marks, mentions=f"tools {mentions}")


KIMI = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
KIMI_END = "<|tool_calls_section_end|>"
XML = "\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
GEMMA = ("<|tool_call>", "<tool_call|>", '<|"|>')
CALLERS: dict[str, Caller] = {
    "json": Caller(plain("<tool_call> tool_call.name"), "<tool_call>\n{}\n</tool_call>", JSON, SPELLED),
    "json in special tokens": Caller(
        plain("<tool_call> tool_call.name", ("<tool_call>", "</tool_call>")), "<tool_call>{}</tool_call>", JSON, SPELLED
    ),
    "json behind a thought": Caller(
        DIALECTS["opened think"]._replace(mentions="tools <tool_call> tool_call.name"),
        "<tool_call>\n{}\n</tool_call>",
        JSON,
        SPELLED,
    ),
    "pythonic": Caller(
        plain("<|tool_call_start|>", ("<|tool_call_start|>", "<|tool_call_end|>")),
        "<|tool_call_start|>{}<|tool_call_end|>",
        "[weather(city='Oslo')]",
    ),
    "xml": Caller(plain("<tool_call>\n<function="), "<tool_call>{}</tool_call>", XML),
    "kimi": Caller(
        plain(KIMI[0], (*KIMI, KIMI_END)),
        f"{KIMI[0]}{{}}{KIMI_END}",
        f'{KIMI[1]}functions.weather:0{KIMI[2]}{{"city": "Oslo"}}{KIMI[3]}',
    ),
    "mistral": Caller(
        plain("[TOOL_CALLS]", ("[TOOL_CALLS]", "[ARGS]")),
        "[TOOL_CALLS]{}",
        'weather[ARGS]{"city": "Oslo"}',
        several=False,
    ),
    "gemma": Caller(
        DIALECTS["gemma"]._replace(marks=(*DIALECTS["gemma"].marks, *GEMMA), mentions=f"tools <|channel> {GEMMA[:2]}"),
        "<|tool_call>{}<tool_call|>",
        'call:weather{city:<|"|>Oslo<|"|>}',
    ),
    "harmony": Caller(
        DIALECTS["harmony"]._replace(
            marks=HARMONY,
            mentions="tools <|channel|>analysis",
            thinks="<|channel|>analysis<|message|>{}<|end|>",
        ),
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{}",
        json.dumps({"city": SPELLED}),
        SPELLED,
        several=False,
        header="commentary to=functions.weather <|constrain|>json<|message|>",
    ),
}
HELD = [name for name in CALLERS if name.startswith(("json", "harmony"))]
"""Those that can be held to a schema."""
APIS = (CHAT, RESPONSES, MESSAGES)


class Told:
    """A caller, and the engine that serves it."""

    def __init__(self, caller: Caller, speaker: Speaker) -> None:
        self.caller = caller
        self.speaker = speaker

    def wants(self, *calls: str, said: str = "", end: str = "") -> None:
        """To think, say something and call; `end` is what it goes on with when it is made to write something else."""
        thinks = self.caller.dialect.thinks != "{}"
        written = said + "\n".join(self.caller.one.replace("{}", text) for text in calls)
        self.speaker.wants(self.caller.dialect.writes(THOUGHT, written) if thinks else written, end or written)


@pytest.fixture(scope="module", params=CALLERS)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    caller = CALLERS[request.param]
    speaker = Speaker(caller.dialect, tmp_path_factory.mktemp("callers") / "model")
    yield Told(caller, speaker)
    speaker.close()


@pytest.fixture
async def gateway(open_gateway: GatewayFactory, told: Told) -> Gateway:
    return open_gateway(script=told.speaker.run, model_path=str(told.speaker.folder), context=CONTEXT)


async def everywhere(gateway: Gateway, *, strict: bool = False, forced: bool = False, **fields: Any) -> list[Got]:
    """What each API says, the same streamed or not; arguments as objects."""
    found = []
    for api in APIS:
        tools = [api.tool("weather", strict=strict), api.tool("clock", {"type": "object", "properties": {}})]
        choice = {"tool_choice": api.required} if forced else {}
        one = await got(gateway, api, tools=tools, **choice, **limited(api, fields))
        found.append(one._replace(calls=[(name, _object(arguments)) for name, arguments in one.calls]))
    return found


def limited(api: Api, fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields.get("max_tokens", 900)
    return {**fields, ("max_output_tokens" if api is RESPONSES else "max_tokens"): tokens}


def _object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


async def test_a_call_is_the_whole_answer(gateway: Gateway, told: Told) -> None:
    told.wants(told.caller.text)
    for found, api in zip(await everywhere(gateway), APIS, strict=True):
        assert found == Got("", [("weather", {"city": told.caller.city})], REASONS[api.path])


async def test_calls_follow_each_other_and_what_was_said(gateway: Gateway, told: Told) -> None:
    if not told.caller.several:
        pytest.skip("one call ends the answer")
    told.wants(told.caller.text, told.caller.text, said="Let me see.\n")
    for found, api in zip(await everywhere(gateway), APIS, strict=True):
        assert found.content.strip() == "Let me see."
        assert found.calls == [("weather", {"city": told.caller.city})] * 2
        assert found.reason == REASONS[api.path]


async def test_an_answer_without_a_call_is_an_answer(gateway: Gateway, told: Told) -> None:
    if told.caller.dialect.format == "harmony":
        told.speaker.wants(DIALECTS["harmony"].writes(THOUGHT, "It rains."), "It rains.")
    else:
        told.wants(said="It rains.")
    for found, api in zip(await everywhere(gateway), APIS, strict=True):
        assert found == Got("It rains.", [], STOPPED[api.path])


async def test_a_forced_call_fits_its_schema_whatever_the_model_would_rather_say(gateway: Gateway, told: Told) -> None:
    if told.caller not in [CALLERS[name] for name in HELD]:
        pytest.skip("this dialect is not held to a schema")
    talk = "I would rather talk."
    refused = f"<|start|>assistant<|channel|>final<|message|>{talk}" if told.caller.header else talk
    told.wants(said=refused, end=told.caller.header + told.caller.text)
    for found, api in zip(await everywhere(gateway, forced=True), APIS, strict=True):
        assert found.content == ""
        assert found.reason == REASONS[api.path]
        for name, arguments in found.calls:
            assert name in ("weather", "clock")
            jsonschema.validate(arguments, SCHEMA if name == "weather" else {"type": "object"})


async def test_a_strict_tools_call_fits_its_schema(gateway: Gateway, told: Told) -> None:
    if told.caller not in [CALLERS[name] for name in HELD]:
        pytest.skip("this dialect is not held to a schema")
    if told.caller.dialect.format == "harmony":
        told.wants('{"town": 7}', end='Oslo"}')
    else:
        told.wants('{"name": "weather", "arguments": {"town": 7}}', end='Oslo"}}\n</tool_call>')
    loose = await everywhere(gateway)
    assert [found.calls for found in loose] == [[("weather", {"town": 7})]] * 3
    for found in await everywhere(gateway, strict=True):
        assert [name for name, _ in found.calls] == ["weather"]
        jsonschema.validate(found.calls[0][1], SCHEMA)


async def test_a_call_that_is_cut_off_ends_with_length_and_loses_nothing(gateway: Gateway, told: Told) -> None:
    told.wants(told.caller.text)
    whole = (await everywhere(gateway))[0]
    for tokens in range(3, 120, 13):
        for api in (CHAT, RESPONSES):
            tools = [api.tool("weather")]
            found = await got(gateway, api, tools=tools, **limited(api, {"max_tokens": tokens}))
            if found.reason == REASONS[api.path]:
                assert found.content == ""
                continue
            assert found.reason == CUT[api.path]
            if found.calls:
                ((name, arguments),) = found.calls
                assert name == "weather"
                assert (json.dumps(whole.calls[0][1])).startswith(arguments)
            begun = told.caller.text.strip().startswith(found.content.strip())
            assert begun or told.caller.one.startswith(found.content), "text of a call, or what could become its mark"

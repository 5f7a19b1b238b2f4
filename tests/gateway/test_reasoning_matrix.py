"""Thoughts and answers of every format through the real engine and every API: each byte in its place.

The models are made to want a certain text; the answer's one legal value holds every mark of every format.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from pomona.runtime.wire import replace
from pomona.workers.constraint.compiler import Compiler
from pomona.workers.constraint.tokens import tokens_of
from pomona.workers.engine import Engine, EngineLimits
from pomona.workers.messages import Request, TokenEvent
from pomona.workers.models.load import load
from pomona.workers.vocabulary import Vocabulary
from tests.gateway.conftest import MODEL, Gateway, GatewayFactory, JsonBody, events_of
from tests.support.formats import DIALECTS, Dialect
from tests.support.willing import Willing, Wish, script
from tests.workers.engines import in_memory

MARKED = (
    "<think>kept</think> </think:opensource> <|channel>thought <channel|> <|channel|>final<|message|> <|end|> "
    "<|content_thinking|> <|end_message|> to=self <|eom|> <tool_call>{}</tool_call>"
)
ANSWER = json.dumps(MARKED)
SCHEMA = {"enum": [MARKED]}
THOUGHT = "First I think, then I say it."
CONTEXT = 2048


class Speaker:
    """A model of a dialect, and the engine that serves it."""

    def __init__(self, dialect: Dialect, folder: Path) -> None:
        self.dialect = dialect
        self.folder = dialect.build(folder)
        model, tokenizer = load(self.folder)
        vocabulary = Vocabulary(load_tokenizer(self.folder))
        eos = frozenset(tokenizer.eos_token_ids)
        self.tokens = tokens_of(tokenizer, vocabulary)
        self.compiler = Compiler(self.tokens)
        self.willing = Willing(model, self.tokens.pieces, min(eos), script("", ""))
        limits = EngineLimits(1, 512, 0.0)
        self.engine = Engine(self.willing, vocabulary, eos, limits, in_memory(0), (), self.compiler)
        self.wants(dialect.writes(THOUGHT, ANSWER), ANSWER)
        self._said: dict[tuple[str, Wish], list[TokenEvent]] = {}

    def wants(self, text: str, answer: str) -> None:
        self.willing.wish = script(text, answer)

    def run(self, request: Request) -> list[TokenEvent]:
        """The real engine's events; what was asked before is not computed again."""
        asked = replace(request, id="r", sampling=replace(request.sampling, seed=0, temperature=0.0))
        key = (repr(asked), self.willing.wish)
        if key not in self._said:
            self.willing.prompt = len(asked.prompt)
            self.engine.assign(asked)
            events: list[TokenEvent] = []
            while self.engine.busy:
                events += self.engine.step()
            self._said[key] = events
        return [replace(event, id=request.id) for event in self._said[key]]

    def close(self) -> None:
        self.compiler.close(5.0)


@pytest.fixture(scope="module", params=DIALECTS)
def speaker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    one = Speaker(DIALECTS[request.param], tmp_path_factory.mktemp("dialects") / "model")
    yield one
    one.close()


@pytest.fixture
async def gateway(open_gateway: GatewayFactory, speaker: Speaker) -> Gateway:
    return open_gateway(script=speaker.run, model_path=str(speaker.folder), context=CONTEXT)


async def chat(gateway: Gateway, stream: bool, **fields: Any) -> tuple[str, str, str]:
    """The thought, the answer, and why it ended."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": fields.pop("schema")}}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Go"}], "response_format": form, "stream": stream}
    reply = await gateway.http.post("/v1/chat/completions", json={**body, **fields})
    assert reply.status_code == 200, reply.text
    if not stream:
        choice = reply.json()["choices"][0]
        message = choice["message"]
        return message.get("reasoning_content", ""), message["content"], choice["finish_reason"]
    thought = content = reason = ""
    for event in events_of(reply.text):
        for choice in event["choices"]:
            thought += choice["delta"].get("reasoning_content", "")
            content += choice["delta"].get("content", "")
            reason = choice["finish_reason"] or reason
    return thought, content, reason


async def messages(gateway: Gateway, stream: bool, **fields: Any) -> tuple[str, str, str]:
    schema, thinking = fields.pop("schema"), fields.pop("enable_thinking", None)
    body: JsonBody = {
        "model": MODEL,
        "max_tokens": 1500,
        "messages": [{"role": "user", "content": "Go"}],
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "stream": stream,
        **fields,
    }
    if thinking is not None:
        body["thinking"] = {"type": "enabled" if thinking else "disabled"}
    reply = await gateway.http.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    thought = content = reason = ""
    if not stream:
        for block in reply.json()["content"]:
            thought += block.get("thinking", "")
            content += block.get("text", "")
        reason = reply.json()["stop_reason"]
    else:
        for event in events_of(reply.text):
            delta = event.get("delta", {})
            thought += delta.get("thinking", "")
            content += delta.get("text", "")
            reason = delta.get("stop_reason") or reason
    return thought, content, {"end_turn": "stop", "max_tokens": "length"}[reason]


async def responses(gateway: Gateway, stream: bool, **fields: Any) -> tuple[str, str, str]:
    form = {"type": "json_schema", "name": "a", "schema": fields.pop("schema")}
    if "max_tokens" in fields:
        fields["max_output_tokens"] = fields.pop("max_tokens")
    body = {"model": MODEL, "input": "Go", "text": {"format": form}, "stream": stream, **fields}
    reply = await gateway.http.post("/v1/responses", json=body)
    assert reply.status_code == 200, reply.text
    if not stream:
        return _of_response(reply.json())
    events = events_of(reply.text)
    thought, content, reason = _of_response(events[-1]["response"])
    for kind, whole in (("reasoning", thought), ("output", content)):
        deltas = (
            event["delta"] for event in events if event["type"].startswith(f"response.{kind}") and "delta" in event
        )
        assert "".join(deltas) == whole
    return thought, content, reason


def _of_response(response: JsonBody) -> tuple[str, str, str]:
    texts = {"reasoning": "", "message": ""}
    for item in response["output"]:
        texts[item["type"]] += "".join(part["text"] for part in item["content"])
    return texts["reasoning"], texts["message"], "stop" if response["status"] == "completed" else "length"


async def everywhere(gateway: Gateway, **fields: Any) -> tuple[str, str, str]:
    """What all three APIs say, streamed or not."""
    said = [await api(gateway, stream, **fields) for api in (chat, messages, responses) for stream in (False, True)]
    assert all(each == said[0] for each in said), said
    return said[0]


async def test_a_thought_and_a_json_answer_come_out_apart(gateway: Gateway) -> None:
    thought, content, reason = await everywhere(gateway, schema=SCHEMA, enable_thinking=True)
    assert (thought.rstrip("\n"), content, reason) == (THOUGHT, ANSWER, "stop")


async def test_without_thinking_the_answer_is_all(gateway: Gateway) -> None:
    """The model would think if it could."""
    assert await everywhere(gateway, schema=SCHEMA, enable_thinking=False) == ("", ANSWER, "stop")


async def test_a_budget_closes_the_thought_and_the_answer_is_whole(gateway: Gateway) -> None:
    thought, content, reason = await everywhere(gateway, schema=SCHEMA, reasoning_budget_tokens=5)
    assert (content, reason) == (ANSWER, "stop")
    assert 0 < len(thought) < len(THOUGHT)
    assert THOUGHT.startswith(thought)


async def test_a_thought_that_takes_all_room_ends_by_length(gateway: Gateway) -> None:
    thought, content, reason = await everywhere(gateway, schema=SCHEMA, max_tokens=15)
    assert (content, reason) == ("", "length")
    assert len(thought) > 0
    assert THOUGHT.startswith(thought)


async def test_the_end_of_all_in_a_thought_leads_to_the_answer(gateway: Gateway, speaker: Speaker) -> None:
    """The model wants to write no more, in the midst of its thought."""
    cut = speaker.dialect.writes("Hm", "").partition("Hm")[0] + "Hm, no"

    def gives_up(written: bytes) -> bytes:
        return cut.encode()[len(written) :] if cut.encode().startswith(written) else speaker_answer(written)

    speaker_answer = script("", ANSWER)
    speaker.willing.wish = gives_up
    try:
        assert await chat(gateway, False, schema=SCHEMA) == ("Hm, no", ANSWER, "stop")
        assert await chat(gateway, True, schema=SCHEMA) == ("Hm, no", ANSWER, "stop")
        usage = (await gateway.http.post("/v1/chat/completions", json=_plain())).json()["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] > 0
    finally:
        speaker.wants(speaker.dialect.writes(THOUGHT, ANSWER), ANSWER)


async def test_free_answers_are_told_from_thoughts_too(gateway: Gateway, speaker: Speaker) -> None:
    free = "Yes, and no."
    closed = "enable_thinking" in speaker.dialect.template
    try:
        for fields, thought in (({}, THOUGHT), ({"enable_thinking": False}, "")):
            speaker.wants(free if fields and closed else speaker.dialect.writes(THOUGHT, free), free)
            reply = (await gateway.http.post("/v1/chat/completions", json=_plain(**fields))).json()
            message = reply["choices"][0]["message"]
            assert message.get("reasoning_content", "").rstrip("\n") == thought
            assert message["content"] == free
    finally:
        speaker.wants(speaker.dialect.writes(THOUGHT, ANSWER), ANSWER)


def _plain(**fields: Any) -> JsonBody:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Go"}], **fields}

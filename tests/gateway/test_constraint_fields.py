"""Every way to fix an answer's form, on every route, comes out as one constraint or a 400 that names the field."""

import json
from typing import Any

import pytest

from pomona.workers.messages import Constraint
from tests.gateway.conftest import Gateway, JsonBody

TURNS: JsonBody = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
CHAT, MESSAGES, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/completions", "/v1/responses"
BODIES: dict[str, JsonBody] = {
    CHAT: TURNS,
    MESSAGES: TURNS,
    COMPLETIONS: {"model": "tiny", "prompt": "Hi", "max_tokens": 5},
    RESPONSES: {"model": "tiny", "input": "Hi", "max_output_tokens": 5},
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
OF_SCHEMA = Constraint("json_schema", json.dumps(SCHEMA))


async def asked(gateway: Gateway, path: str, fields: JsonBody) -> Constraint | None:
    response = await gateway.http.post(path, json=BODIES[path] | fields)
    assert response.status_code == 200, response.text
    return gateway.source.submitted[-1].constraint


async def refused(gateway: Gateway, path: str, fields: JsonBody) -> str:
    before = len(gateway.source.submitted)
    response = await gateway.http.post(path, json=BODIES[path] | fields)
    assert response.status_code == 400, response.text
    assert len(gateway.source.submitted) == before
    message: str = response.json()["error"]["message"]
    return message


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}),
        (CHAT, {"response_format": {"type": "json_schema", "schema": SCHEMA}}),
        (COMPLETIONS, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": False}}}),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    ],
)
async def test_each_apis_own_field_takes_a_schema_with_its_order(gateway: Gateway, path: str, fields: JsonBody) -> None:
    assert await asked(gateway, path, fields) == OF_SCHEMA


TAKEN: list[tuple[JsonBody, Constraint]] = [
    ({"structured_outputs": {"json": SCHEMA}}, OF_SCHEMA),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, OF_SCHEMA),
    ({"structured_outputs": {"json_object": True}}, Constraint("json_object")),
    ({"structured_outputs": {"regex": "a+", "json": None, "choice": None}}, Constraint("regex", "a+")),
    ({"structured_outputs": {"choice": ["a", "é"]}}, Constraint("choice", '["a", "é"]')),
    ({"structured_outputs": {"grammar": "start: /a/"}}, Constraint("lark", "start: /a/")),
    ({"guided_json": SCHEMA}, OF_SCHEMA),
    ({"guided_regex": "a+", "guided_decoding_backend": "guidance"}, Constraint("regex", "a+")),
    ({"guided_choice": ["a"]}, Constraint("choice", '["a"]')),
    ({"guided_grammar": 'root ::= "a"'}, Constraint("lark", 'start: ((("a")))')),
]


async def test_every_route_takes_the_fields_of_vllm(gateway: Gateway) -> None:
    for path in BODIES:
        for fields, constraint in TAKEN:
            assert await asked(gateway, path, fields) == constraint


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"response_format": None, "guided_json": None, "structured_outputs": None}),
        (CHAT, {"response_format": {"type": "text"}}),
        (CHAT, {"structured_outputs": {}}),
        (CHAT, {"structured_outputs": {"json": None, "json_object": False}}),
        (RESPONSES, {"text": {"format": {"type": "text"}}}),
        (RESPONSES, {"text": {"verbosity": "low"}}),
        (MESSAGES, {"output_config": {"effort": "high"}}),
    ],
)
async def test_nothing_asked_for_is_no_constraint(gateway: Gateway, path: str, fields: JsonBody) -> None:
    assert await asked(gateway, path, fields) is None


async def test_any_object_is_a_form_of_its_own(gateway: Gateway) -> None:
    assert await asked(gateway, CHAT, {"response_format": {"type": "json_object"}}) == Constraint("json_object")
    assert await asked(gateway, RESPONSES, {"text": {"format": {"type": "json_object"}}}) == Constraint("json_object")


def schema_form(schema: Any, **more: Any) -> JsonBody:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}}


WHERE = "response_format.json_schema.schema"


REFUSED: list[tuple[JsonBody, list[str]]] = [
    ({"response_format": {"type": "yaml"}}, ["response_format.type", "'yaml'", "json_schema"]),
    ({"response_format": {"type": "structural_tag", "structures": []}}, ["response_format.structures"]),
    ({"response_format": "json"}, ["response_format"]),
    ({"response_format": {"type": "json_schema"}}, ["response_format.schema is missing"]),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, [f"{WHERE} is missing"]),
    (schema_form([1]), [WHERE, "JSON Schema"]),
    (schema_form(3), [WHERE, "JSON Schema"]),
    (schema_form({}, strict="yes"), ["json_schema.strict"]),
    (schema_form({"type": "array", "uniqueItems": True}), [WHERE, "'uniqueItems'", "$"]),
    (schema_form({"properties": {"a": {"not": {}}}}), ["'not'", "$.properties.a"]),
    (schema_form({"anyOf": [{"if": {}, "then": {}}]}), ["'if'", "$.anyOf[0]"]),
    (schema_form({"$defs": {"d": {"format": "iban"}}}), ["'iban'", "$.$defs.d", "date-time"]),
    (schema_form({"type": "integer", "minimum": 5, "maximum": 3}), [WHERE, "minimum"]),
    (schema_form({"type": "string", "pattern": "(?=a)"}), [WHERE, "look-around"]),
    (schema_form({"$ref": "#/$defs/x"}), [WHERE, "$defs/x"]),
    ({"structured_outputs": {"structural_tag": {}}}, ["structured_outputs.structural_tag"]),
    ({"structured_outputs": {"whitespace_pattern": " "}}, ["structured_outputs.whitespace_pattern"]),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, ["json and regex"]),
    ({"structured_outputs": {"regex": "a"}, "guided_regex": "a"}, ["structured_outputs.regex and guided_regex"]),
    (schema_form({}) | {"guided_choice": ["a"]}, [WHERE, "guided_choice"]),
    ({"structured_outputs": {"json": "{"}}, ["structured_outputs.json is no JSON"]),
    ({"structured_outputs": {"json": 7}}, ["structured_outputs.json"]),
    ({"structured_outputs": {"regex": ""}}, ["structured_outputs.regex"]),
    ({"structured_outputs": {"regex": ["a"]}}, ["structured_outputs.regex"]),
    ({"structured_outputs": {"regex": "(a"}}, ["structured_outputs.regex", "unclosed group"]),
    ({"structured_outputs": {"choice": []}}, ["structured_outputs.choice"]),
    ({"guided_choice": ["a", 1]}, ["guided_choice"]),
    ({"guided_grammar": "   "}, ["guided_grammar"]),
    ({"guided_grammar": "start: <[*]>"}, ["guided_grammar", "<[…]>"]),
    ({"guided_grammar": "start: ((("}, ["guided_grammar", "Expected token"]),
    ({"guided_grammar": "root ::= x"}, ["guided_grammar", "`x`"]),
    ({"guided_regex": 5}, ["guided_regex"]),
]


async def test_what_cannot_be_followed_is_refused_with_field_and_reason(gateway: Gateway) -> None:
    for fields, words in REFUSED:
        message = await refused(gateway, CHAT, fields)
        assert [word for word in words if word not in message] == [], (fields, message)
        assert "\n" not in message


async def test_what_is_called_like_a_keyword_or_stands_in_a_text_is_let_through(gateway: Gateway) -> None:
    named = {"type": "object", "properties": {"not": {"type": "integer"}, "uniqueItems": {"type": "string"}}}
    assert await asked(gateway, CHAT, schema_form(named)) == Constraint("json_schema", json.dumps(named))
    valued = {"enum": [{"not": 1, "if": {"format": "iban"}}]}
    assert await asked(gateway, CHAT, schema_form(valued)) == Constraint("json_schema", json.dumps(valued))
    numbers = {"type": "integer", "format": "int64"}
    assert await asked(gateway, CHAT, schema_form(numbers)) == Constraint("json_schema", json.dumps(numbers))
    lark = 'start: "<[1]>"'
    assert await asked(gateway, CHAT, {"guided_grammar": lark}) == Constraint("lark", lark)


CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


async def test_strict_is_openais_rules(gateway: Gateway) -> None:
    assert await asked(gateway, CHAT, schema_form(CLOSED, strict=True)) == Constraint("json_schema", json.dumps(CLOSED))
    nested = {**CLOSED, "properties": {"a": {"type": "array", "items": {"type": "object", "properties": {}}}}}
    for schema, words in (
        ({**CLOSED, "required": []}, ["$ lacks 'a'", "required"]),
        ({**CLOSED, "additionalProperties": True}, ["additionalProperties", "$"]),
        ({"type": "object", "properties": {}}, ["additionalProperties", "$"]),
        (nested, ["additionalProperties", "$.properties.a.items"]),
        ({"type": "string"}, ["root"]),
        ({"anyOf": [CLOSED]}, ["root"]),
        ({**CLOSED, "allOf": []}, ["'allOf'"]),
        (True, ["root"]),
    ):
        message = await refused(gateway, CHAT, schema_form(schema, strict=True))
        assert [word for word in ["strict", *words] if word not in message] == [], message


async def test_a_fixed_form_does_not_go_on_from_a_begun_answer(gateway: Gateway) -> None:
    begun = [*TURNS["messages"], {"role": "assistant", "content": "{"}]
    fields = {"messages": begun, "structured_outputs": {"json_object": True}}
    assert "structured_outputs" in await refused(gateway, MESSAGES, fields)
    assert "begun" in await refused(gateway, CHAT, fields | {"continue_final_message": True})
    assert await asked(gateway, CHAT, fields) == Constraint("json_object")


async def test_counting_tokens_takes_a_form_and_does_nothing_with_it(gateway: Gateway) -> None:
    body = {key: value for key, value in TURNS.items() if key != "max_tokens"}
    form = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    plain = await gateway.http.post(f"{MESSAGES}/count_tokens", json=body)
    formed = await gateway.http.post(f"{MESSAGES}/count_tokens", json=body | form)
    assert formed.status_code == 200
    assert formed.json() == plain.json()

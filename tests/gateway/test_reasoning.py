"""What clients say of thinking, and where templates leave a model."""

from typing import Any

import pytest

from pomona.gateway.errors import ApiError
from pomona.gateway.reasoning import ReasoningFields, Thinking, reasoning_of, thinking_of
from pomona.workers.messages import Reasoning
from tests.gateway.conftest import MODEL, GatewayFactory, JsonBody
from tests.support.formats import DIALECTS
from tests.support.scripted_source import say


def asked(variables: JsonBody | None = None, effort: Any = None, **fields: Any) -> Thinking:
    return thinking_of(ReasoningFields(**fields), variables, effort)


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking()),
        ({"enable_thinking": False}, Thinking(False)),
        ({"enable_thinking": True, "reasoning_effort": "none"}, Thinking(True)),
        ({"reasoning_effort": "none"}, Thinking(False)),
        ({"reasoning_effort": "high"}, Thinking(None, "high")),
        ({"reasoning": {"effort": "low"}}, Thinking(None, "low")),
        ({"reasoning": {"effort": None, "summary": "auto"}}, Thinking()),
        ({"effort": "medium"}, Thinking(None, "medium")),
        ({"reasoning": {"enabled": False}}, Thinking(False)),
        ({"reasoning": {"max_tokens": 50}}, Thinking(None, None, 50)),
        ({"thinking": {"type": "disabled"}}, Thinking(False)),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, Thinking(True, None, 2000)),
        ({"thinking": {"type": "adaptive"}}, Thinking()),
        ({"reasoning_budget_tokens": 0}, Thinking(False, None, 0)),
        ({"reasoning_budget_tokens": -1}, Thinking(None, None, -1)),
        ({"thinking_token_budget": 7, "thinking": {"budget_tokens": 9}}, Thinking(None, None, 7)),
        ({"variables": {"enable_thinking": False}}, Thinking(False)),
        ({"variables": {"thinking": True}, "reasoning_effort": "none"}, Thinking(True)),
        ({"variables": {"enable_thinking": False}, "enable_thinking": True}, Thinking(True)),
    ],
)
def test_all_clients_ways_to_say_it(fields: JsonBody, thinking: Thinking) -> None:
    assert asked(**fields) == thinking


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking": "yes"}, "thinking"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"thinking": {"budget_tokens": -2}}, "thinking.budget_tokens"),
        ({"thinking": {"budget_tokens": True}}, "thinking.budget_tokens"),
        ({"reasoning": ["high"]}, "reasoning"),
        ({"reasoning": {"effort": 3}}, "reasoning_effort"),
        ({"reasoning": {"max_tokens": "many"}}, "reasoning.max_tokens"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: JsonBody, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        asked(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_template_is_told_what_it_reads_and_nothing_else() -> None:
    off = Thinking(False, "high")
    assert off.variables("{{ enable_thinking }}") == {"enable_thinking": False}
    assert off.variables("{{ reasoning_effort }} {{ thinking }}") == {"thinking": False}
    assert Thinking(None, "low").variables("{{ reasoning_effort }}") == {"reasoning_effort": "low"}
    assert Thinking(True).variables("{{ messages }}") == {}


def test_an_effort_is_a_word_for_templates_that_read_it_and_a_bound_for_others() -> None:
    reads = "{{ reasoning_effort }}"
    assert [Thinking(None, word).bound("") for word in ("minimal", "low", "medium", "high", "xhigh")] == [
        1024,
        2048,
        8192,
        None,
        None,
    ]
    assert Thinking(None, "low").bound(reads) is None
    assert Thinking(None, "low", 5).bound(reads) == 5
    assert Thinking(None, "low", -1).bound("") is None
    assert Thinking(False, "low", 5).bound("") == 0


THINK = "<think> </think>"


@pytest.mark.parametrize(
    ("tail", "continued", "begun"),
    [
        ("<|im_start|>assistant\n<think>\n", False, "<think>"),
        ("<|im_start|>assistant\n<think>", False, "<think>"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False, "<think></think>"),
        ("<|im_start|>assistant\n", False, ""),
        ("<think>old</think>Yes<|im_end|>\n<|im_start|>assistant\n", False, ""),
        ("<think>so</think>\n\nThe answer", True, "<think></think>"),
        ("<think>so it", True, "<think>"),
        ("<|im_start|>assistant\nThe answer", True, "<think></think>"),
    ],
)
def test_only_what_the_prompt_ends_in_counts(tail: str, continued: bool, begun: str) -> None:
    expected = Reasoning(format="think", begun=begun)
    assert reasoning_of(THINK, tail, Thinking(), continued=continued) == expected


def test_a_suffix_comes_from_the_prompt_or_from_a_template_that_knows_one() -> None:
    suffixed = Reasoning(format="think", suffix=":open-1", begun="<think:open-1>")
    assert reasoning_of("{{ '<think:' + s + '>' }}", "x<think:open-1>\n", Thinking(), continued=False) == suffixed
    assert reasoning_of("<think:a>", "x", Thinking(), continued=False) == Reasoning(format="think", suffix=":a")
    assert reasoning_of("<think:a> <think:b>", "x", Thinking(), continued=False) is None
    assert reasoning_of("<think:> <thinking>", "x", Thinking(), continued=False) is None


def test_templates_without_marks_have_no_format() -> None:
    for template in ("", "{{ messages }}", "<|eom_id|>", "<|im_start|>"):
        assert reasoning_of(template, "assistant\n", Thinking(), continued=False) is None


@pytest.mark.parametrize("name", DIALECTS)
async def test_each_template_leaves_its_model_where_its_format_says(
    name: str, open_gateway: GatewayFactory, tmp_path: Any
) -> None:
    dialect = DIALECTS[name]
    gateway = open_gateway(lambda request: say(request, "Yes"), model_path=str(dialect.build(tmp_path / "m")))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say </think> and <think>"}]}
    reply = await gateway.http.post("/v1/chat/completions", json={**body, "reasoning_budget_tokens": 40})
    assert reply.status_code == 200, reply.text
    assert gateway.source.submitted[-1].reasoning == Reasoning(
        format=dialect.format, suffix=dialect.suffix, begun=dialect.begun, budget=40
    )


async def test_raw_prompts_and_plain_templates_have_no_thoughts(open_gateway: GatewayFactory) -> None:
    gateway = open_gateway(lambda request: say(request, "Yes"))
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "<think>"}], "reasoning_effort": "low"}
    assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200
    raw = {"model": MODEL, "prompt": "<think>", "reasoning_effort": "low", "max_tokens": 5}
    assert (await gateway.http.post("/v1/completions", json=raw)).status_code == 200
    assert [request.reasoning for request in gateway.source.submitted] == [None, None]

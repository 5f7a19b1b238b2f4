"""From messages to prompt tokens: a model's chat template and tokeniser, off the event loop."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jinja2

from pomona.gateway.body import JsonObject, JsonValue
from pomona.gateway.control_names import control_tokens, name_like
from pomona.gateway.errors import ApiError, invalid
from pomona.gateway.reasoning import TAIL, Thinking, reasoning_of
from pomona.gateway.tool_dialect import ToolDialect, dialect_of
from pomona.gateway.turns import name_results
from pomona.workers.messages import Reasoning

T = TypeVar("T")

NOTHING_SAID = Thinking()

RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that chat_template_kwargs may not set: they are arguments of the renderer, not variables of the template."""

TEMPLATE_ERRORS = (jinja2.TemplateError, ValueError, TypeError, KeyError, IndexError, AttributeError)
"""What a template raises on messages that it was not written for."""


class Rendered(NamedTuple):
    """A conversation as a prompt."""

    tokens: list[int]
    reasoning: Reasoning | None
    """How what the model writes behind it is to be read."""


class Prompts:
    """Renders and tokenises for one model; one call at a time, in a thread of the pool.

    Text of messages that spells a control token, such as `<|im_end|>`, is tokenised as plain text: only the template
    itself writes control tokens. (A transformers too old to know `sanitize_control_tokens` takes it for a variable of
    the template, and protects nothing.)
    """

    def __init__(self, model: str, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._model = model
        self._folder = folder
        self._pool = pool
        self._lock = asyncio.Lock()
        self._tokenizer: Any = None
        self._size: int | None = None
        self._dialect: ToolDialect | None = None
        self._knows_dialect = False

    async def load(self) -> None:
        """Raises ApiError 503 if the folder holds no usable tokeniser."""
        await self._run(lambda: None)

    async def chat(
        self,
        messages: Sequence[JsonObject],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, JsonValue] | None = None,
        thinking: Thinking = NOTHING_SAID,
        tools: Sequence[JsonObject] = (),
    ) -> Rendered:
        """A conversation as a prompt. Raises ApiError 400 with the template's own words where it refuses.

        `variables` are the template's own, and go before what follows from `thinking`; `tools` are as templates know
        them.
        """
        for name in variables or {}:
            if name in RESERVED:
                raise invalid(f"chat_template_kwargs may not set {name!r}", "chat_template_kwargs")
        return await self._run(
            lambda: self._render(
                name_results(messages), add_generation_prompt, continue_final_message, variables or {}, thinking, tools
            )
        )

    async def tool_dialect(self) -> ToolDialect | None:
        """How the model writes calls of tools; None where it is offered none."""
        if not self._knows_dialect:
            self._dialect = await self._run(lambda: dialect_of(self._tokenizer))
            self._knows_dialect = True
        return self._dialect

    async def text(self, prompt: str) -> list[int]:
        """Tokens of a raw prompt; control tokens in it are control tokens, as the route is meant for."""
        return await self._run(lambda: [int(token) for token in self._tokenizer(prompt)["input_ids"]])

    async def vocabulary(self) -> int:
        """How many token ids there are."""
        if self._size is None:
            self._size = await self._run(lambda: len(self._tokenizer))
        return self._size

    async def decode(self, tokens: Sequence[int]) -> str:
        return await self._run(lambda: str(self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)))

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._lock:
            loop = asyncio.get_running_loop()
            if self._tokenizer is None:
                self._tokenizer = await loop.run_in_executor(self._pool, self._open)
            return await loop.run_in_executor(self._pool, work)

    def _open(self) -> Any:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
        except Exception as error:  # a broken folder fails in any way it likes; the reason goes to the client
            reason = f"the tokeniser of model {self._model} does not load from {self._folder.name}: {error}"
            raise ApiError(503, reason.splitlines()[0], code="unavailable") from error

    def _render(
        self,
        messages: Sequence[JsonObject],
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, JsonValue],
        thinking: Thinking,
        tools: Sequence[JsonObject],
    ) -> Rendered:
        if self._tokenizer.chat_template is None:
            raise invalid(f"model {self._model} has no chat template: use /v1/completions", "model")
        template = _text_of(self._tokenizer.chat_template)
        self._check_names(messages, "messages")
        self._check_names(tools, "tools")
        variables = {**thinking.variables(template), **variables}

        def render(turns: Sequence[JsonObject]) -> list[int]:
            tokens = self._tokenizer.apply_chat_template(
                list(turns),
                tools=list(tools) or None,
                tokenize=True,
                return_dict=False,
                sanitize_control_tokens=True,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **variables,
            )
            return [int(token) for token in tokens]

        try:
            try:
                tokens = render(messages)
            except TEMPLATE_ERRORS:
                hoisted = hoist_systems(messages)
                if hoisted == list(messages):
                    raise
                tokens = render(hoisted)
        except TEMPLATE_ERRORS as error:
            text = " ".join(str(error).split())[:400] or type(error).__name__
            raise invalid(f"the chat template of {self._model} refuses these messages: {text}", "messages") from error
        if not (add_generation_prompt or continue_final_message):
            return Rendered(tokens, None)
        tail = str(self._tokenizer.decode(tokens[-TAIL:], clean_up_tokenization_spaces=False))
        return Rendered(tokens, reasoning_of(template, tail, thinking, continued=continue_final_message))

    def _check_names(self, values: Sequence[JsonObject], param: str) -> None:
        name = name_like(list(values), control_tokens(self._tokenizer))
        if name is not None:
            raise invalid(f"{param}: the name {name[:80]!r} spells a control token of {self._model}; rename it", param)


def _text_of(template: object) -> str:
    """A template's source, or those of all that a tokeniser names."""
    return "".join(map(str, template.values())) if isinstance(template, dict) else str(template)


def hoist_systems(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """All system turns as one at the head, for templates that take no other."""
    systems = [turn for turn in messages if turn["role"] == "system"]
    if not systems:
        return list(messages)
    head: JsonObject = {"role": "system", "content": "\n\n".join(str(turn["content"]) for turn in systems)}
    return [head, *(turn for turn in messages if turn["role"] != "system")]

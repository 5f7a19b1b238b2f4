"""How models write down what they think before they answer: the marks of each format, as data."""

from typing import Literal, NamedTuple

ReasoningFormat = Literal["think", "gemma", "inkling", "harmony", "muse"]
Part = Literal["thought", "answer"]


class Header(NamedTuple):
    """A mark that opens a part; nothing but one of a format's headers may stand where a header is due."""

    text: str
    opens: Part


class Marks(NamedTuple):
    headers: tuple[Header, ...]
    """None begins with another. The first that opens an answer is the one that is written by force."""
    closer: str
    """Ends a thought; what comes next is a header again, or the answer where it may come without one."""
    bare: bool
    """An answer may come without a header."""
    again: bool
    """Thoughts may follow each other."""


def marks_of(format: ReasoningFormat, suffix: str = "") -> Marks:
    """`suffix` belongs into the tags of `think`."""
    headers: tuple[Header, ...]
    match format:
        case "think":
            return Marks((Header(f"<think{suffix}>", "thought"),), f"</think{suffix}>", bare=True, again=False)
        case "gemma":
            headers = (Header("<|channel>thought", "thought"), Header("<|channel>\n", "answer"))
            return Marks(headers, "<channel|>", bare=True, again=True)
        case "inkling":
            headers = (
                *_begun("<|message_model|>", Header("<|content_text|>", "answer")),
                *_begun("<|message_model|>", Header("<|content_thinking|>", "thought")),
            )
            return Marks(headers, "<|end_message|>", bare=False, again=True)
        case "harmony":
            answers = (
                "<|channel|>final<|message|>",
                "<|channel|>final <|constrain|>json<|message|>",
                "<|channel|>commentary<|message|>",
                " to=user<|channel|>final<|message|>",
                "<|channel|>final to=user<|message|>",
            )
            headers = (
                *(each for text in answers for each in _begun(ASSISTANT, Header(text, "answer"))),
                *_begun(ASSISTANT, Header("<|channel|>analysis<|message|>", "thought")),
            )
            return Marks(headers, "<|end|>", bare=False, again=True)
        case "muse":
            headers = (
                *_begun(ASSISTANT, Header(" to=user<|message|>", "answer")),
                *_begun(ASSISTANT, Header("<|message|>", "answer")),
                *_begun(ASSISTANT, Header(" to=self<|message|>", "thought")),
            )
            return Marks(headers, "<|eom|>", bare=False, again=True)


ASSISTANT = "<|start|>assistant"
"""Begins a message of the model; the prompt may have spent it."""


def _begun(prefix: str, header: Header) -> tuple[Header, Header]:
    return Header(prefix + header.text, header.opens), header


def tool_headers(tool: str) -> tuple[str, ...]:
    """Harmony's marks before a call of a tool, which name it; the call's text is its arguments alone."""
    return tuple(
        each.text
        for text in (
            f"<|channel|>commentary to=functions.{tool} <|constrain|>json<|message|>",
            f"<|channel|>commentary to=functions.{tool}<|message|>",
            f" to=functions.{tool}<|channel|>commentary <|constrain|>json<|message|>",
            f" to=functions.{tool}<|channel|>commentary<|message|>",
        )
        for each in _begun(ASSISTANT, Header(text, "answer"))
    )


def format_of(template: str) -> ReasoningFormat | None:
    """Which format a chat template speaks; None where it has no marks of one. A model's name is never asked."""
    for mark, format in _MARKS:
        if mark in template:
            return format
    return None


_MARKS: tuple[tuple[str, ReasoningFormat], ...] = (
    ("<|content_thinking|>", "inkling"),
    ("<|channel|>", "harmony"),
    ("<|eom|>", "muse"),
    ("<|channel>", "gemma"),
    ("<think", "think"),
)
"""The first that a template has decides."""

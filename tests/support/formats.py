"""Small models of every reasoning format: hand-written templates, their special tokens, and what a model writes."""

from pathlib import Path
from typing import NamedTuple

from pomona.reasoning_formats import ReasoningFormat
from tests.support.tiny_model import build_tiny_model

TURNS = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"


class Dialect(NamedTuple):
    """How the models of one template speak."""

    format: ReasoningFormat
    opens: str
    """Behind the turns, where the model goes on; a Jinja text."""
    begun: str
    """Of the format's marks, what the prompt ends in."""
    thinks: str
    """What the model writes before a thought, `{}` stands for the thought, and what it writes up to the answer."""
    marks: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    mentions: str = ""
    """Marks that the template knows of for turns of the past."""
    suffix: str = ""

    @property
    def template(self) -> str:
        past = f"{{% if false %}}{{{{ {self.mentions!r} }}}}{{% endif %}}" if self.mentions else ""
        return TURNS + past + "{% if add_generation_prompt %}" + self.opens + "{% endif %}"

    def build(self, folder: Path) -> Path:
        return build_tiny_model(folder, chat_template=self.template, marks=self.marks, tags=self.tags)

    def writes(self, thought: str, answer: str) -> str:
        """All that a model writes that thinks first."""
        return self.thinks.replace("{}", thought) + answer


ASSISTANT = "{{ '<|im_start|>assistant\n' }}"
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|constrain|>", "<|call|>")
INKLING = ("<|message_model|>", "<|content_thinking|>", "<|content_text|>", "<|end_message|>")

DIALECTS: dict[str, Dialect] = {
    "opened think": Dialect(
        "think",
        ASSISTANT + "{{ '<think>\n\n</think>\n\n' if enable_thinking is false else '<think>\n' }}",
        "<think>",
        "{}\n</think>\n\n",
        tags=("<think>", "</think>"),
    ),
    "free think": Dialect(
        "think", ASSISTANT, "", "<think>\n{}\n</think>\n\n", tags=("<think>", "</think>"), mentions="<think>"
    ),
    "spelled think": Dialect("think", ASSISTANT, "", "<think>\n{}\n</think>\n\n", mentions="<think>"),
    "stubborn think": Dialect("think", ASSISTANT + "{{ '<think>\n' }}", "<think>", "{}\n</think>\n\n"),
    "suffixed think": Dialect(
        "think",
        ASSISTANT + "{{ '<think:opensource>' }}",
        "<think:opensource>",
        "{}</think:opensource>",
        tags=("<think:opensource>", "</think:opensource>"),
        suffix=":opensource",
    ),
    "gemma": Dialect(
        "gemma",
        "{{ '<start_of_turn>model\n' }}",
        "",
        "<|channel>thought\n{}\n<channel|>",
        marks=("<|channel>", "<channel|>"),
        mentions="<|channel>",
    ),
    "inkling": Dialect(
        "inkling",
        "{{ '<|message_model|>' }}",
        "<|message_model|>",
        "<|content_thinking|>{}<|end_message|><|message_model|><|content_text|>",
        marks=INKLING,
        mentions="<|content_thinking|>",
    ),
    "harmony": Dialect(
        "harmony",
        "{{ '<|start|>assistant' }}",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>",
        marks=HARMONY,
        mentions="<|channel|>analysis",
    ),
    "muse": Dialect(
        "muse",
        "{{ '<|start|>assistant' }}",
        "<|start|>assistant",
        " to=self<|message|>{}<|eom|><|start|>assistant to=user<|message|>",
        marks=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
        mentions="<|eom|>",
    ),
}
"""All six formats, and the ways in which prompts leave those with tags."""

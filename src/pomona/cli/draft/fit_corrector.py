"""`pomona draft fit-corrector`: answers to prompts, and what they teach a model's prediction head about itself."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress

from pomona.cli.draft.prompts import read_prompts
from pomona.home import Home
from pomona.refusal import Refusal
from pomona.workers.models.library import ModelLibrary
from pomona.workers.models.load import load
from pomona.workers.speculation.anatomy import Unfit
from pomona.workers.speculation.answers import Answer, Listener
from pomona.workers.speculation.corrector import Account, accepted_drafts
from pomona.workers.speculation.corrector_file import corrector_path, save_corrector
from pomona.workers.speculation.fit_corrector import KINDS, Fitting
from pomona.workers.speculation.mtp import SAMPLE
from pomona.workers.speculation.mtp_head import load_mtp_head, settle_contract


class Wish(NamedTuple):
    model: str
    prompts: Path | None
    tokens: int
    depth: int
    kind: str
    rank: int
    out: Path | None


def run(wish: Wish) -> int:
    """Raises Refusal for a model without a head, and where too little was answered."""
    home = Home.resolve()
    prompts = read_prompts(wish.prompts)
    found = ModelLibrary(home.models).find(wish.model)
    model, tokenizer = load(found.path)
    try:
        head = load_mtp_head(found.path, model)
        if head is None:
            raise Refusal(f"{found.id} has no prediction head (mtp weights), which is what a corrector is for")
        settle_contract(head, model, tokenizer.encode(SAMPLE), found.id)
        listener = Listener(model, head, frozenset(tokenizer.eos_token_ids))
    except Unfit as error:
        raise Refusal(f"the prediction head of {found.id} cannot be used: {error}") from error
    answers = _answers(listener, [_tokens(tokenizer, prompt) for prompt in prompts], wish.tokens)
    try:
        fitting = Fitting(head, answers, wish.depth, wish.rank)
    except ValueError as error:
        raise Refusal(f"too little was answered: {error}; give more prompts, or a greater --tokens") from error
    kinds = [kind for kind in KINDS if wish.kind in ("auto", kind)]
    corrector = fitting.run(kinds, lambda text: print(text, file=sys.stderr))
    path = wish.out.expanduser() if wish.out is not None else corrector_path(found.path, home)
    try:
        save_corrector(corrector, path)
    except OSError as error:
        raise Refusal(f"{path} cannot be written: {error.strerror or error}") from error
    _show(corrector.account, path, pays=corrector.pays)
    return 0


def _tokens(tokenizer: Any, prompt: str) -> list[int]:
    """As a chat would send it, where the model has a template."""
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(prompt))
    messages = [{"role": "user", "content": prompt}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))


def _answers(listener: Listener, prompts: Sequence[list[int]], tokens: int) -> list[Answer]:
    """Until all are answered, or Ctrl-C."""
    answers: list[Answer] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("answering", total=len(prompts))
        try:
            for prompt in prompts:
                answers.append(listener.answer(prompt, tokens))
                bars.advance(task)
        except KeyboardInterrupt:
            bars.stop()
    print(f"{len(answers)} of {len(prompts)} prompts answered", file=sys.stderr)
    return answers


def _show(account: Account, path: Path, *, pays: bool) -> None:
    print("DEPTH  BEFORE   AFTER")
    for depth, (before, after) in enumerate(zip(account.before, account.after, strict=True), 1):
        print(f"{depth:5}  {before:6.3f}  {after:6.3f}")
    gain = accepted_drafts(account.after) - accepted_drafts(account.before)
    use = "is used" if pays else "does not help, and is not used"
    print(f"{account.kind}, blend {account.blend:g}: {gain:+.3f} accepted a round; it {use}: {path}")

"""`pomona chat`: a conversation in the terminal, over HTTP with a server that runs already."""

import os
import sys
from collections.abc import Generator
from contextlib import closing
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from pomona.cli.chat_client import ChatClient, Kind, Turn
from pomona.home import Home
from pomona.listener import url
from pomona.refusal import Refusal
from pomona.settings import Flags, load


class Options(NamedTuple):
    model: str | None
    system: str | None
    temperature: float | None
    max_tokens: int | None


def run(options: Options, address: str | None, flags: Flags) -> int:
    """The exit code; raises Refusal where no server answers, or where a piped question gets no answer."""
    gateway = load(flags, os.environ, Home.resolve()).config.gateway
    key = gateway.api_keys[0] if gateway.api_keys else None
    piped = None if sys.stdin.isatty() else sys.stdin.read().strip()
    if piped == "":
        raise Refusal("no question came in; pipe one in, or start `pomona chat` in a terminal")
    with ChatClient(address or url(gateway.host, gateway.port), key) as client:
        conversation = Conversation(client, options, Console(highlight=False, soft_wrap=True))
        if piped is None:
            conversation.talk()
        else:
            conversation.answer(piped)
    return 0


class Conversation:
    """The turns so far and the terminal that shows them."""

    def __init__(self, client: ChatClient, options: Options, console: Console) -> None:
        self._client = client
        self._options = options
        self._console = console
        self._model = options.model or client.first_model()
        self._turns = [Turn("system", options.system)] if options.system else []

    def talk(self) -> None:
        """Question and answer until Ctrl-D."""
        import readline  # noqa: F401  (gives input() a history and an editable line)

        self._console.print(f"{self._model} at {self._client.url}. Ctrl-C stops an answer, Ctrl-D ends.", style="dim")
        while (question := self._ask()) is not None:
            if not question.strip():
                continue
            try:
                self.answer(question)
            except Refusal as refusal:
                self._turns.pop()
                self._console.print(Text(str(refusal), "red"))

    def answer(self, question: str) -> None:
        """Stream one answer; what Ctrl-C left of it stays in the conversation, so that the next turn knows it."""
        self._turns.append(Turn("user", question))
        said = ""
        try:
            with closing(self._pieces()) as pieces:
                for kind, text in pieces:
                    if kind == "content":
                        said += text
                    self._console.print(Text(visible(text), "dim" if kind == "reasoning" else ""), end="")
        except KeyboardInterrupt:
            self._console.print(Text(" (stopped)", "dim"), end="")
        self._console.print()
        self._turns.append(Turn("assistant", said))

    def _pieces(self) -> Generator[tuple[Kind, str]]:
        return self._client.stream(self._model, self._turns, self._options.temperature, self._options.max_tokens)

    def _ask(self) -> str | None:
        while True:
            try:
                return input("> ")
            except EOFError:
                self._console.print()
                return None
            except KeyboardInterrupt:
                self._console.print()


def visible(text: str) -> str:
    """Text without control characters other than line ends and tabs, so that a model cannot steer the terminal."""
    return "".join(character for character in text if character in "\n\t" or character.isprintable())

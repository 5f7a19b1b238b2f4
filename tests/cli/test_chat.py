"""`pomona chat` against a real HTTP server, in a pipe and in a terminal."""

import io
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pomona.__main__ import main
from pomona.cli.chat import visible
from tests.cli.chat_server import DONE, ChatServer, chunk, serving


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POMONA_HOME", str(tmp_path))
    for name in ("POMONA_API_KEY", "POMONA_API_KEYS", "POMONA_HOST", "POMONA_PORT", "POMONA_CONFIG", "POMONA_LOG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def piped(monkeypatch: pytest.MonkeyPatch, question: str, *arguments: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(question))
    return main(["chat", *arguments])


def test_a_piped_question_is_answered_and_all_options_arrive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POMONA_API_KEYS", "first,second")
    stream = [chunk(role="assistant"), chunk(content="Hel"), chunk(content="lo"), DONE]
    options = ["--system", "Be brief.", "--temperature", "0", "--max-tokens", "7"]
    with serving(ChatServer(lambda _: stream)) as server:
        arguments = ["chosen", "--url", f"{server.url}/v1/", *options]
        assert piped(monkeypatch, "Hi?\n", *arguments) == 0
    assert capsys.readouterr().out == "Hello\n"
    assert server.keys == ["Bearer first"]
    assert server.bodies == [
        {
            "model": "chosen",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi?"}],
            "stream": True,
            "temperature": 0.0,
            "max_tokens": 7,
        }
    ]


def test_without_options_the_first_model_is_asked_and_nothing_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(ChatServer(lambda _: [chunk(content="x"), DONE], models=("one", "two"))) as server:
        assert piped(monkeypatch, "Hi?", "--url", server.url) == 0
    assert server.bodies == [{"model": "one", "messages": [{"role": "user", "content": "Hi?"}], "stream": True}]
    assert server.keys == [None, None]


def test_the_configured_address_is_the_default(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(ChatServer(lambda _: [chunk(content="found"), DONE])) as server:
        (home / "pomona.toml").write_text(f"[gateway]\nport = {server.url.rpartition(':')[2]}", encoding="utf-8")
        assert piped(monkeypatch, "Hi?") == 0
    assert capsys.readouterr().out == "found\n"


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_shown_before_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    with serving(ChatServer(lambda _: [chunk(**{key: "thinks "}), chunk(content="says"), DONE])) as server:
        assert piped(monkeypatch, "Hi?", "--url", server.url) == 0
    assert capsys.readouterr().out == "thinks says\n"


def test_text_cannot_steer_the_terminal() -> None:
    assert visible("a\x1b[2Jb\r\x07c\td\né 🍎") == "a[2Jbc\td\né 🍎"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ((401, '{"error": {"message": "wrong key"}}'), "{url} answered 401: wrong key; set POMONA_API_KEY"),
        ((404, '{"error": {"message": "no model x"}}'), "{url} answered 404: no model x"),
        ((502, "<html>"), "{url} answered 502: Bad Gateway"),
        ((200, 'data: {"error": {"message": "it broke"}}\n\n'), "the answer failed: it broke"),
        ((200, "data: {\n\n"), "{url} does not speak the chat API (Input data was truncated); mend --url"),
    ],
)
def test_a_failure_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reply: tuple[int, str], expected: str
) -> None:
    with serving(ChatServer(lambda _: reply)) as server:
        assert piped(monkeypatch, "Hi?", "x", "--url", server.url) == 1
    assert capsys.readouterr().err == f"pomona: {expected.format(url=server.url)}\n"


def test_a_server_without_models_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ChatServer(lambda _: [], models=())) as server:
        assert piped(monkeypatch, "Hi?", "--url", server.url) == 1
    assert capsys.readouterr().err == f"pomona: {server.url} serves no model; name one: pomona serve MODEL\n"


def test_without_a_server_the_line_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert piped(monkeypatch, "Hi?", "--url", url) == 1
    assert capsys.readouterr().err == f"pomona: no server answers at {url}; start one: pomona serve\n"


@pytest.mark.parametrize("url", ["nonsense", "http://host:port", "ftp://127.0.0.1"])
def test_a_url_that_is_none_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert piped(monkeypatch, "Hi?", "--url", url) == 1
    assert capsys.readouterr().err == f"pomona: {url} is no URL; write --url http://HOST:PORT\n"


def test_an_empty_pipe_is_no_question(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert piped(monkeypatch, " \n") == 1
    assert capsys.readouterr().err.startswith("pomona: no question came in; ")


class Terminal:
    """`pomona chat` with a terminal for its input and output."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process = process
        self._end = end
        self._shown = ""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def shows(self, pattern: str, within_s: float = 60.0) -> None:
        """Waits until what was shown since the last call matches."""
        assert self._sees(pattern, time.monotonic() + within_s), f"{pattern!r} not in {self._shown!r}"

    def interrupt_until(self, pattern: str, within_s: float = 60.0) -> None:
        """Ctrl-C, again and again as people do: Python may take one in before it waits for a key, and wait on."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            self.process.send_signal(signal.SIGINT)
            if self._sees(pattern, time.monotonic() + 2.0):
                return
        raise AssertionError(f"{pattern!r} not in {self._shown!r}")

    def _sees(self, pattern: str, deadline: float) -> bool:
        while (match := re.search(pattern, self._shown)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if select.select([self._end], [], [], left)[0]:
                self._shown += os.read(self._end, 4096).decode()
        self._shown = self._shown[match.end() :]
        return True


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pomona", "chat", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait(10)
        os.close(ours)


def test_a_conversation_goes_on_after_ctrl_c_and_ends_with_ctrl_d() -> None:
    def reply(question: str) -> list[str]:
        held = [chunk(content="Once upon"), ChatServer.HOLD]
        return held if question == "Tell me a story." else [chunk(content="Bye."), DONE]

    with serving(ChatServer(reply)) as server, terminal("--url", server.url) as shell:
        shell.shows("tiny at .*Ctrl-D ends")
        shell.shows("> ")
        shell.type("Tell me a story.\n")
        shell.shows("Once upon")
        shell.process.send_signal(signal.SIGINT)
        shell.shows(r"\(stopped\)")
        assert server.left.wait(10), "the server was not told that nobody listens"
        shell.shows("> ")
        shell.type("Enough.\n")
        shell.shows(r"Bye\.")
        shell.shows("> ")
        shell.interrupt_until("> ")
        shell.type("\x04")
        assert shell.process.wait(10) == 0
    assert [turn["content"] for turn in server.bodies[1]["messages"]] == ["Tell me a story.", "Once upon", "Enough."]


def test_a_turn_that_failed_is_not_part_of_the_conversation() -> None:
    def reply(question: str) -> list[str] | tuple[int, str]:
        return (503, '{"error": {"message": "all full"}}') if question == "one" else [chunk(content="Fine."), DONE]

    with serving(ChatServer(reply)) as server, terminal("--url", server.url) as shell:
        shell.shows("> ")
        shell.type("one\n")
        shell.shows("answered 503: all full")
        shell.shows("> ")
        shell.type("\n")
        shell.shows("> ")
        shell.type("two\n")
        shell.shows(r"Fine\.")
        shell.shows("> ")
        shell.type("\x04")
        assert shell.process.wait(10) == 0
    assert [turn["content"] for turn in server.bodies[-1]["messages"]] == ["two"]
    assert len(server.bodies) == 2

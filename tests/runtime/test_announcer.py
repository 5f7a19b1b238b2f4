import io
import json
import shlex

import pytest
from rich.console import Console

from pomona.announcer import Announcer, curl
from pomona.config import Config, GatewayConfig, ModelConfig
from pomona.runtime.control import ActorKind, ActorName, ActorState, ActorStatus, Roster

URL = "http://127.0.0.1:8420"
VITAL = [("gateway", "ready", ""), ("scheduler", "ready", "")]


class Screen:
    def __init__(self, *models: str, keys: tuple[str, ...] = (), terminal: bool = False) -> None:
        self.output = io.StringIO()
        config = Config(
            models=tuple(ModelConfig(id=model, path="/models") for model in models),
            gateway=GatewayConfig(api_keys=keys),
            stop_grace_s=10.0,
        )
        console = Console(file=self.output, force_terminal=terminal, width=40)
        self.announcer = Announcer(console, config, URL)

    def show(self, *actors: tuple[str, ActorState, str]) -> list[str]:
        """The lines that a change to this roster adds."""
        before = len(self.output.getvalue())
        self.announcer.changed(Roster(tuple(status(*actor) for actor in actors)))
        return self.output.getvalue()[before:].splitlines()


def status(name: str, state: ActorState, detail: str) -> ActorStatus:
    kinds: dict[str, ActorKind] = {"gateway": "gateway", "scheduler": "scheduler", "cache": "cache"}
    kind, _, rest = name.partition(":")
    return ActorStatus(ActorName(name), kinds.get(kind, "worker"), 0, state, 7, detail, rest.partition(":")[0] or None)


def test_loading_is_shown_line_by_line_and_then_where_it_listens() -> None:
    screen = Screen("a")
    assert screen.show(("worker:a", "starting", "starting"), *VITAL) == ["a: starting"]
    assert screen.show(("worker:a", "starting", "loading weights"), *VITAL) == ["a: loading weights"]
    assert screen.show(("worker:a", "starting", "loading weights"), *VITAL) == []
    lines = screen.show(("worker:a", "ready", ""), *VITAL)
    assert lines[:3] == ["a: ready", f"Pomona listens at {URL} and serves a", "Try it:"]
    assert lines[3].startswith(f"  curl {URL}/v1/chat/completions ")
    assert screen.show(("worker:a", "ready", "other detail"), *VITAL) == []


def test_it_listens_only_when_gateway_and_scheduler_and_every_model_are_settled() -> None:
    screen = Screen("a", "b")
    assert "listens" not in " ".join(screen.show(("worker:a", "ready", ""), ("worker:b", "starting", "x"), *VITAL))
    assert "listens" not in " ".join(screen.show(("worker:a", "ready", ""), ("worker:b", "dead", "x"), *VITAL))
    ready = [("worker:a", "ready", ""), ("worker:b", "ready", "")]
    assert screen.show(*ready, ("gateway", "starting", ""), ("scheduler", "ready", "")) == ["b: ready"]
    assert screen.show(*ready, ("gateway", "ready", ""), ("scheduler", "starting", "")) == []
    assert f"Pomona listens at {URL} and serves a, b" in screen.show(*ready, *VITAL)


def test_one_replica_is_enough_to_serve_a_model() -> None:
    screen = Screen("a")
    lines = screen.show(("worker:a:0", "ready", ""), ("worker:a:1", "starting", "loading"), *VITAL)
    assert f"Pomona listens at {URL} and serves a" in lines


def test_a_model_that_failed_is_named_and_not_served() -> None:
    screen = Screen("a", "b")
    lines = screen.show(("worker:a", "failed", "no weights; import it again"), ("worker:b", "ready", ""), *VITAL)
    assert lines[0] == "a: failed: no weights; import it again"
    assert f"Pomona listens at {URL} and serves b" in lines
    assert '"model": "b"' in lines[-1]


def test_nothing_is_announced_if_no_model_is_ready() -> None:
    screen = Screen("a")
    assert screen.show(("worker:a", "failed", "no weights"), *VITAL) == ["a: failed: no weights"]


def test_death_and_return_are_told() -> None:
    screen = Screen("a")
    screen.show(("worker:a", "ready", ""), *VITAL)
    assert screen.show(("worker:a", "dead", "signal 9 (SIGKILL)"), *VITAL) == [
        "a: ended: signal 9 (SIGKILL); it starts again"
    ]
    assert screen.show(("worker:a", "starting", "loading"), *VITAL) == ["a: loading"]
    assert screen.show(("worker:a", "ready", ""), *VITAL) == ["a: ready again (process 7)"]


def test_a_replica_that_comes_later_is_not_there_again() -> None:
    screen = Screen("a")
    screen.show(("worker:a:0", "ready", ""), ("worker:a:1", "starting", "loading"), *VITAL)
    assert screen.show(("worker:a:1", "ready", ""), *VITAL) == ["a: ready (process 7)"]


def test_a_lost_cache_is_told_with_what_it_means() -> None:
    screen = Screen("a")
    lines = screen.show(("worker:a", "starting", "x"), ("cache", "failed", "the folder is in use"), *VITAL)
    assert lines[1:] == ["cache: failed: the folder is in use", "serving goes on without stored prefixes"]


def test_stopping_is_told_once_and_nothing_listens_after_it() -> None:
    screen = Screen("a")
    screen.show(("worker:a", "starting", "x"), *VITAL)
    lines = screen.show(("worker:a", "ready", ""), ("gateway", "stopping", ""), ("scheduler", "ready", ""))
    assert lines[-1] == "stopping: running answers may finish within 10 s; Ctrl-C again ends at once"
    assert screen.show(("worker:a", "ready", ""), ("gateway", "stopped", ""), ("scheduler", "stopping", "")) == []
    screen.announcer.finish(None)
    assert screen.output.getvalue().endswith("\nstopped\n")


def test_an_end_that_nobody_asked_for_is_not_called_stopped() -> None:
    screen = Screen("a")
    screen.announcer.finish("every model failed")
    assert screen.output.getvalue() == ""


def test_on_a_terminal_loading_is_one_line_that_changes_and_goes() -> None:
    screen = Screen("a", terminal=True)
    for percent in range(100):
        screen.show(("worker:a", "starting", f"loading [{percent} %]"), *VITAL)
    screen.announcer.finish("the model failed")
    text = screen.output.getvalue()
    assert "loading [99 %]" in text, "brackets in a detail are text"
    assert text.count("\n") < 50


def test_on_a_terminal_the_loading_line_makes_way_for_the_banner() -> None:
    screen = Screen("a", terminal=True)
    screen.show(("worker:a", "starting", "loading"), *VITAL)
    lines = screen.show(("worker:a", "ready", ""), *VITAL)
    assert lines[-3].endswith(f"Pomona listens at {URL} and serves a")


@pytest.mark.parametrize("with_key", [False, True])
def test_the_command_is_one_that_a_shell_runs(with_key: bool) -> None:
    command = shlex.split(curl(URL, "it's a model", with_key=with_key))
    assert command[:2] == ["curl", f"{URL}/v1/chat/completions"]
    assert json.loads(command[command.index("-d") + 1])["model"] == "it's a model"
    assert ("Authorization: Bearer $POMONA_API_KEY" in command) == with_key


def test_a_key_is_never_shown() -> None:
    screen = Screen("a", keys=("very-secret",))
    lines = screen.show(("worker:a", "ready", ""), *VITAL)
    assert '-H "Authorization: Bearer $POMONA_API_KEY"' in lines[-1]
    assert "very-secret" not in screen.output.getvalue()

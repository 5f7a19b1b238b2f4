"""What people see of a running system: how it loads, where it listens, what died and came back."""

import json

from rich.console import Console
from rich.status import Status
from rich.text import Text

from pomona.config import Config
from pomona.runtime.control import ActorStatus, Roster


class Announcer:
    """Turns roster changes into lines; on a terminal, what is loading shows in one line that changes."""

    def __init__(self, console: Console, config: Config, url: str) -> None:
        self._console = console
        self._config = config
        self._url = url
        self._last = Roster(())
        self._listening = False
        self._stopping = False
        self._was_ready: set[str] = set()
        self._status: Status | None = None

    def changed(self, roster: Roster) -> None:
        """The supervisor's `on_change`."""
        last, self._last = self._last, roster
        for actor in roster.actors:
            before = last.find(actor.name)
            if before is None or (before.state, before.detail) != (actor.state, actor.detail):
                self._actor_changed(actor, before)
            if actor.state == "ready":
                self._was_ready.add(actor.name)
        if not self._stopping and any(actor.state == "stopping" for actor in roster.actors):
            self._stopping = True
            grace_s = self._config.stop_grace_s
            self._say(f"stopping: running answers may finish within {grace_s:g} s; Ctrl-C again ends at once")
        if not self._listening and not self._stopping and self._settled(roster):
            self._listening = True
            self._hide_status()
            for line in self.banner(roster):
                self._say(line)

    def _actor_changed(self, actor: ActorStatus, before: ActorStatus | None) -> None:
        label = actor.model or actor.name
        match actor.state:
            case "starting" if actor.kind == "worker":
                self._show_status(f"{label}: {actor.detail}")
            case "ready" if self._listening and before is not None and before.state != "ready":
                again = " again" if actor.name in self._was_ready else ""
                self._say(f"{label}: ready{again} (process {actor.pid})")
            case "ready" if actor.kind == "worker" and not self._listening:
                self._show_status(f"{label}: ready")
            case "dead":
                self._say(f"{label}: ended: {actor.detail}; it starts again")
            case "failed":
                self._say(f"{label}: failed: {actor.detail}")
                if actor.kind == "cache":
                    self._say("serving goes on without stored prefixes")
            case _:
                return

    def _settled(self, roster: Roster) -> bool:
        """Everything that can serve serves, and something does."""
        vital = [actor.state == "ready" for actor in roster.actors if actor.kind in ("gateway", "scheduler")]
        states = [self._states(roster, model.id) for model in self._config.models]
        settled = all("ready" in found or found == {"failed"} for found in states)
        return all(vital) and settled and bool(self._ready_models(roster))

    def _states(self, roster: Roster, model: str) -> set[str]:
        return {actor.state for actor in roster.actors if actor.model == model}

    def _ready_models(self, roster: Roster) -> list[str]:
        return [model.id for model in self._config.models if "ready" in self._states(roster, model.id)]

    def banner(self, roster: Roster) -> list[str]:
        """Where it listens, what it serves, and a command that works."""
        models = self._ready_models(roster)
        return [
            f"Pomona listens at {self._url} and serves {', '.join(models)}",
            "Try it:",
            f"  {curl(self._url, models[0], with_key=bool(self._config.gateway.api_keys))}",
        ]

    def finish(self, reason: str | None) -> None:
        """All actors have ended; the reason for an end that nobody asked for is the caller's to tell."""
        self._hide_status()
        if reason is None:
            self._say("stopped")

    def _show_status(self, text: str) -> None:
        if not self._console.is_terminal:
            self._say(text)
        elif self._status is None:
            self._status = self._console.status(Text(text))
            self._status.start()
        else:
            self._status.update(Text(text))

    def _hide_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _say(self, line: str) -> None:
        # Neither wrapped nor marked up: the command is there to be copied.
        self._console.print(Text(line), soft_wrap=True)


def curl(url: str, model: str, *, with_key: bool) -> str:
    """A command line for a POSIX shell; the key stays in the caller's environment."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello."}]}).replace("'", "'\\''")
    key = ' -H "Authorization: Bearer $POMONA_API_KEY"' if with_key else ""
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"

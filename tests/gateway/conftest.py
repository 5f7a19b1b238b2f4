import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from pomona.config import CacheConfig, Config, GatewayConfig, ModelConfig, SchedulerConfig, SpeculationConfig
from pomona.gateway.actor import HttpServer
from pomona.gateway.app import create_app
from pomona.gateway.catalog import Catalog
from pomona.gateway.closing import Closing
from pomona.gateway.grammar_check import GrammarChecker
from pomona.gateway.metrics import Metrics
from pomona.gateway.services import Services
from pomona.gateway.stored import StoredResponses
from pomona.runtime.control import ActorName, ActorStatus, Roster
from pomona.runtime.mailbox import now
from pomona.scheduler.messages import ModelState
from tests.support.scripted_source import Script, ScriptedSource, say
from tests.support.tiny_model import build_tiny_model
from tests.support.tool_templates import HARMONY_CALLS, JSON_CALLS, PYTHONIC_CALLS

MODEL = "tiny"
CONTEXT = 256

JsonBody = dict[str, Any]

STRICT = (
    "{% for m in messages %}"
    "{% if m['role'] == 'system' and not loop.first %}{{ raise_exception('the system turn comes first') }}{% endif %}"
    "{% if m['role'] == 'assistant' and loop.first %}"
    "{{ raise_exception('the first turn must be the user\\'s') }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] | upper if shout else m['content']) + '<|im_end|>\n' }}"
    "{% endfor %}"
)
"""A chat template with opinions, and a variable."""


def events_of(text: str) -> list[JsonBody]:
    """The JSON of every event of a stream."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def strict_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_tiny_model(tmp_path_factory.mktemp("models") / "strict", chat_template=STRICT))


@pytest.fixture(scope="session")
def calling_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models that call tools, by dialect."""
    models = tmp_path_factory.mktemp("callers")
    return {
        "json": build_tiny_model(models / "json", chat_template=JSON_CALLS),
        "pythonic": build_tiny_model(models / "pythonic", chat_template=PYTHONIC_CALLS),
        "harmony": build_tiny_model(models / "harmony", chat_template=HARMONY_CALLS),
    }


@pytest.fixture
def calling_folder(calling_folders: dict[str, Path]) -> str:
    """A model that calls tools, in JSON."""
    return str(calling_folders["json"])


@pytest.fixture(scope="session")
def tuned_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose makers recommend a sampler."""
    folder = build_tiny_model(tmp_path_factory.mktemp("models") / "tuned")
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return str(folder)


@dataclass
class Gateway:
    """A gateway over a scripted source, and a client that talks to it in this process."""

    app: ASGIApp
    services: Services
    source: ScriptedSource
    http: httpx.AsyncClient
    """Raises what the application raises."""
    forgiving: httpx.AsyncClient
    """Shows what a client would see then."""


GatewayFactory = Callable[..., Gateway]


@pytest.fixture
async def open_gateway(model_folder: Path) -> AsyncIterator[GatewayFactory]:
    opened: list[Gateway] = []

    def open_one(
        script: Script | None = None,
        model_path: str = "",
        cache: CacheConfig | None = None,
        max_per_client: int = 0,
        speculation: SpeculationConfig | None = None,
        context: int = CONTEXT,
        **settings: Any,
    ) -> Gateway:
        config = Config(
            scheduler=SchedulerConfig(max_per_client=max_per_client),
            cache=cache or CacheConfig(),
            gateway=GatewayConfig(**settings),
            models=(
                ModelConfig(
                    id=MODEL, path=model_path or str(model_folder), speculation=speculation or SpeculationConfig()
                ),
                ModelConfig(id="org/tiny-2", path=str(model_folder)),
            ),
        )
        states = [ModelState(id=model.id, state="ready", context=context, workers=1) for model in config.models]
        source = ScriptedSource(states, script or (lambda request: say(request, "Hello", " world")))
        roster = Roster((ActorStatus(ActorName("scheduler"), "scheduler", 3, "ready", 42),))
        services = Services(
            config=config,
            source=source,
            catalog=Catalog(config),
            closing=Closing(),
            metrics=Metrics(),
            stored=StoredResponses(max_responses=3),
            grammars=GrammarChecker(),
            roster=lambda: roster,
            started=now(),
        )
        app = create_app(services)
        clients = [
            httpx.AsyncClient(transport=httpx.ASGITransport(app, raises), base_url="http://test", timeout=30)
            for raises in (True, False)
        ]
        opened.append(Gateway(app, services, source, *clients))
        return opened[-1]

    yield open_one
    for gateway in opened:
        await gateway.http.aclose()
        await gateway.forgiving.aclose()
        await gateway.services.grammars.close()
        gateway.services.catalog.close()


@pytest.fixture
async def gateway(open_gateway: GatewayFactory) -> Gateway:
    return open_gateway()


@pytest.fixture
def open_caller(open_gateway: GatewayFactory, calling_folders: dict[str, Path]) -> GatewayFactory:
    """A gateway before a model that calls tools in a dialect."""

    def open_one(script: Script | None = None, dialect: str = "json") -> Gateway:
        return open_gateway(script, model_path=str(calling_folders[dialect]), context=1024)

    return open_one


@dataclass
class Served:
    gateway: Gateway
    url: str
    server: HttpServer


Serve = Callable[[Gateway], Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serves a gateway on a real socket until the test ends."""
    running: list[tuple[Served, asyncio.Task[None]]] = []

    async def start(gateway: Gateway) -> Served:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        started = asyncio.Event()
        server = HttpServer(gateway.app, listening, started.set)
        task = asyncio.create_task(server.run())
        await asyncio.wait_for(started.wait(), 10)
        running.append((Served(gateway, f"http://127.0.0.1:{port}", server), task))
        return running[-1][0]

    yield start
    for served, task in running:
        await served.server.stop(0.0, served.gateway.services.closing)
        await asyncio.wait_for(task, 10)

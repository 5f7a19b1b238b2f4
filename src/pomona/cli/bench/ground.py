"""What every bench that starts servers itself stands on: a model, a clean environment, a folder that goes away."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pomona.cli.bench.comparison import Environment
from pomona.cli.bench.contenders import HOST, clean_environment, pomona_server
from pomona.cli.bench.environment import describe
from pomona.cli.bench.load import Target
from pomona.cli.bench.measure import sigterm_is_interrupt
from pomona.cli.bench.models import find_target
from pomona.cli.bench.progress import BenchProgress
from pomona.cli.bench.server import RunningServer, claim_port, serving
from pomona.cli.bench.subject import model_folder
from pomona.runtime import blas


@dataclass(frozen=True, slots=True, kw_only=True)
class Pomona:
    """Pomona as it runs. `url` has no path."""

    process: RunningServer
    url: str
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    folder: Path
    """The model that servers are started on."""
    env: Mapping[str, str]
    """The whole environment of every process that is measured."""
    scratch: Path
    port: int
    """0: any free port, anew for each start."""
    ready_timeout_s: float
    progress: BenchProgress

    @property
    def environment(self) -> Environment:
        """Where the figures come from."""
        return describe(self.folder, self.env)

    def speculation(self, settings: str) -> str:
        """Text of a configuration file: what the model under test is to know of speculation."""
        folder = json.dumps(str(self.folder))  # the server is asked to serve this folder, which is its id here
        return f"[[models]]\nid = {folder}\npath = {folder}\n[models.speculation]\n{settings}\n"

    @contextlib.contextmanager
    def pomona(self, home: Path, config: str = "") -> Iterator[Pomona]:
        """A running Pomona with this home and the text of its configuration file; it has ended afterwards."""
        port = claim_port(self.port)
        file = self.scratch / "pomona.toml"
        file.write_text(config, encoding="utf-8")
        command = pomona_server(self.folder, port, self.env, home, self.ready_timeout_s, config=file)
        with serving(command) as process:
            url = f"http://{HOST}:{port}"
            yield Pomona(process=process, url=url, target=find_target(f"{url}/v1", None, None))


@contextlib.contextmanager
def ground(model: str | None, console: Console, *, tiny: bool, port: int, ready_timeout_s: float) -> Iterator[Ground]:
    """Within it SIGTERM acts like Ctrl-C. Raises BenchError or ModelError if there is no such model."""
    with tempfile.TemporaryDirectory(prefix="pomona-bench-") as scratch, sigterm_is_interrupt():
        yield Ground(
            folder=model_folder(model, tiny=tiny, scratch=Path(scratch), console=console),
            env=clean_environment(os.environ, Path(scratch), blas.environment(blas.find())),
            scratch=Path(scratch),
            port=port,
            ready_timeout_s=ready_timeout_s,
            progress=BenchProgress(console),
        )

"""The model that servers are started on for a comparison."""

from pathlib import Path

from rich.console import Console

from pomona.cli.bench.problem import BenchError


def model_folder(name: str | None, *, tiny: bool, scratch: Path, console: Console) -> Path:
    """The folder of the model `name`, of the built-in one, or of the tiny one, made in `scratch`.

    Raises BenchError if a name and the tiny model are asked for at once, ModelError if there is no such model.
    """
    if tiny:
        if name is not None:
            raise BenchError(f"--tiny makes a model of its own: leave out {name}, or --tiny")
        from pomona.cli.bench.tiny import build_tiny

        return build_tiny(scratch / "tiny")
    from pomona.cli.transfer import transfer
    from pomona.home import Home
    from pomona.workers.models import embedded
    from pomona.workers.models.library import ModelLibrary

    with transfer(console) as report:
        return ModelLibrary(Home.resolve().models).find(name or embedded.ID, progress=report).path

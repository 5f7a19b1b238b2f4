"""`pomona serve`: settle what is served, then hand over to the composition root."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from pomona import api_keys
from pomona.cli.transfer import Report, transfer
from pomona.config import ModelConfig
from pomona.home import Home
from pomona.refusal import SettingsError
from pomona.runtime.wire import replace
from pomona.settings import Flags, load
from pomona.workers.models import embedded
from pomona.workers.models.library import ModelLibrary


def run(names: tuple[str, ...], flags: Flags) -> int:
    """Serves until it is told to stop; returns the exit code. Raises Refusal for whatever prevents the start."""
    home = Home.resolve()
    settings = load(flags, os.environ, home)
    for variable in api_keys.VARIABLES:
        os.environ.pop(variable, None)  # every actor inherits the environment; only gateways are told the keys
    console = Console(highlight=False)
    for warning in settings.warnings:
        console.print(f"warning: {warning}", markup=False, soft_wrap=True)
    with transfer(console) as report:
        models = choose(names, settings.config.models, ModelLibrary(home.models), report)
    from pomona import launch

    return launch.serve(replace(settings.config, models=models), console=console)


def choose(
    names: tuple[str, ...], configured: tuple[ModelConfig, ...], library: ModelLibrary, report: Report
) -> tuple[ModelConfig, ...]:
    """The models to serve, each checked on disk; the embedded one is fetched if it is asked for and not there.

    A name is a configured id, or whatever the library understands. Raises Refusal.
    """
    models = tuple(_chosen(names, configured, library, report))
    for model_id, times in Counter(model.id for model in models).items():
        if times > 1:
            raise SettingsError(f"{times} models have the id {model_id}; name each once, or give one another id")
    return models


def _chosen(
    names: tuple[str, ...], configured: tuple[ModelConfig, ...], library: ModelLibrary, report: Report
) -> Iterator[ModelConfig]:
    known = {model.id: model for model in configured}
    for name in names or tuple(known) or (embedded.ID,):
        model = known.get(name)
        if model is None:
            found = library.find(name, progress=report)
            model = ModelConfig(id=found.id, path=str(found.path))
        elif model.path == str(library.folder / model.id):
            library.find(model.id, progress=report)
        else:
            library.check(Path(model.path))
        _check_draft(model, library, report)
        yield model


def _check_draft(model: ModelConfig, library: ModelLibrary, report: Report) -> None:
    """As for the model itself. Raises Refusal."""
    if model.speculation.draft_model is None:
        return
    folder = Path(model.speculation.draft_model)
    if folder.is_relative_to(library.folder):
        library.find(str(folder.relative_to(library.folder)), progress=report)
    else:
        library.check(folder)

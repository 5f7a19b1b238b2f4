"""`pomona doctor`: one line for each thing that Pomona needs, and the mend where it lacks."""

import os
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from pomona.cli import checks
from pomona.cli.mlx_probe import probe_mlx
from pomona.config import Config
from pomona.home import Home
from pomona.refusal import SettingsError
from pomona.runtime import blas
from pomona.settings import Flags, load

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def run(flags: Flags) -> int:
    """Prints the findings as they come; exit code 1 if one of them is a failure."""
    console = Console(highlight=False)
    failed = False
    for finding in findings(flags):
        failed |= finding.state == "fail"
        line = Text.assemble((f"{finding.state:<4}", STYLES[finding.state]), f"  {finding.name:<14} {finding.text}")
        console.print(line, soft_wrap=True)
        if finding.mend:
            console.print(Text(f"{'':21}{finding.mend}", "dim"), soft_wrap=True)
    return 1 if failed else 0


def findings(flags: Flags) -> Iterator[checks.Finding]:
    yield checks.platform()
    yield checks.python()
    probe = probe_mlx(blas.environment(blas.find()))
    yield checks.mlx(probe)
    yield from checks.linear_algebra(probe)
    home = Home.resolve()
    config = Config()
    try:
        settings = load(flags, os.environ, home)
    except SettingsError as error:
        yield checks.Finding("configuration", "fail", str(error))
    else:
        config = settings.config
        yield from checks.configuration(settings, home)
    yield from checks.folders(home, config)
    yield checks.port(config.gateway)
    yield from checks.models(home, config)

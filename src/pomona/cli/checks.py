"""The checks of `pomona doctor`: each looks at one thing and gives findings; none changes anything."""

import contextlib
import os
import platform as machine
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import httpx
import psutil
from rich.filesize import decimal

from pomona.cli.mlx_probe import MlxProbe
from pomona.config import Config, GatewayConfig
from pomona.home import Home
from pomona.launch import cache_folder
from pomona.listener import listen, url
from pomona.refusal import Refusal
from pomona.settings import Settings
from pomona.workers.models import embedded
from pomona.workers.models.error import ModelError
from pomona.workers.models.library import ModelLibrary

MIN_MACOS = (14, 0)
EMBEDDED_BYTES = 700_000_000
"""Disk that the default model takes at most, with the download it is made from."""
PROBE_S = 2.0


class Finding(NamedTuple):
    name: str
    state: Literal["ok", "warn", "fail"]
    text: str
    mend: str = ""


def platform(system: str = sys.platform, processor: str = "", release: str = "") -> Finding:
    """`system`, `processor` and `release` as sys.platform, platform.machine and platform.mac_ver name them."""
    processor = processor or machine.machine()
    memory = f"{decimal(psutil.virtual_memory().total)} memory"
    if system == "darwin":
        release = release or machine.mac_ver()[0]
        text = f"macOS {release}, {processor}, {memory}"
        if processor != "arm64":
            return Finding("platform", "fail", text, "MLX needs Apple Silicon and an arm64 Python (not under Rosetta)")
        if tuple(int(part) for part in release.split(".")[:2]) < MIN_MACOS:
            return Finding("platform", "fail", text, f"update to macOS {MIN_MACOS[0]} or newer, which MLX needs")
        return Finding("platform", "ok", text)
    text = f"{system}, {processor}, {memory}"
    if system == "linux" and processor in ("x86_64", "aarch64"):
        return Finding("platform", "ok", text)
    return Finding("platform", "fail", text, "MLX runs on macOS (arm64) and Linux (x86_64, aarch64)")


def python() -> Finding:
    return Finding("python", "ok", f"{machine.python_version()} at {sys.executable}")


def mlx(probe: MlxProbe) -> Finding:
    if probe.error:
        return Finding("mlx", "fail", f"cannot be used: {probe.error}", "run: make setup")
    text = f"{probe.version} on {probe.device}"
    if sys.platform == "darwin" and not probe.metal:
        return Finding("mlx", "warn", f"{text}, without Metal", "models will run on the CPU, slowly; is this a VM?")
    return Finding("mlx", "ok", text)


def linear_algebra(probe: MlxProbe) -> Iterator[Finding]:
    """Which BLAS a worker on Linux computes with; nothing on a Mac."""
    if not probe.libraries:
        return
    if (fast := probe.loaded("libmkl_rt") or probe.loaded("libopenblas")) is not None:
        yield Finding("blas", "ok", f"{fast}, preloaded into workers")
    else:
        mend = "run: make setup (x86_64: installs mkl), or install OpenBLAS (Debian: apt install libopenblas0)"
        yield Finding("blas", "warn", "only the slow reference BLAS, about 90 times slower", mend)


def configuration(settings: Settings, home: Home) -> Iterator[Finding]:
    source = str(settings.file) if settings.file else f"defaults (there is no {home.config})"
    keys = len(settings.config.gateway.api_keys)
    yield Finding("configuration", "ok", f"{source}; API keys: {keys or 'none, loopback only'}")
    for warning in settings.warnings:
        yield Finding("configuration", "warn", warning)


def folders(home: Home, config: Config) -> Iterator[Finding]:
    cache = Path(cache_folder(config, home))
    yield _disk("model folder", home.models, EMBEDDED_BYTES)
    if config.cache.enabled:
        yield _disk("cache folder", cache, config.cache.min_free_bytes)
    yield _writable("run folder", home.run)


def _disk(name: str, folder: Path, wanted: int) -> Finding:
    writable = _writable(name, folder)
    if writable.state == "fail":
        return writable
    free = shutil.disk_usage(_nearest(folder)).free
    text = f"{writable.text}, {decimal(free)} free"
    if free < wanted:
        return Finding(name, "warn", text, f"free some disk: below {decimal(wanted)} nothing is stored there")
    return Finding(name, "ok", text)


def _writable(name: str, folder: Path) -> Finding:
    there = _nearest(folder)
    if not there.is_dir():
        return Finding(name, "fail", f"{there} is a file, not a folder", "move it away, or set POMONA_HOME")
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(name, "fail", f"{folder} cannot be written", f"chmod u+rwx {there}, or set POMONA_HOME")
    return Finding(name, "ok", str(folder) if folder.exists() else f"{folder} (made at the first start)")


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def port(gateway: GatewayConfig) -> Finding:
    """Free, or taken by a Pomona that runs, or by something else."""
    address = url(gateway.host, gateway.port)
    try:
        listen(gateway.host, gateway.port).close()
    except Refusal as refusal:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{address}/health/live", timeout=PROBE_S, trust_env=False).status_code == httpx.codes.OK:
                return Finding("port", "ok", f"{gateway.port}: Pomona is running at {address}")
        return Finding("port", "fail", str(refusal))
    return Finding("port", "ok", f"{gateway.port} is free on {gateway.host}")


def models(home: Home, config: Config) -> Iterator[Finding]:
    """What is in the library and what the configuration names."""
    library = ModelLibrary(home.models)
    for model in library.list():
        yield Finding(
            "model", "ok", f"{model.id}: {model.architecture}, {decimal(model.bytes)}, context {model.context}"
        )
    for error in library.damaged():
        yield Finding("model", "fail", str(error))
    for configured in config.models:
        path = Path(configured.path)
        if path.parent == home.models and (path.exists() or configured.id == embedded.ID):
            continue
        try:
            library.check(path)
        except ModelError as error:
            yield Finding("model", "fail", f"{configured.id}: {error}")
        else:
            yield Finding("model", "ok", f"{configured.id}: {path}")
    if not (library.list() or library.damaged() or config.models):
        yield Finding("model", "ok", f"none yet; `pomona serve` fetches {embedded.ID} (93 MB)")

"""How each contender is started: the same model folder, the same BLAS, nothing of the user's own set-up."""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pomona.cli.bench.bare import BareSpec
from pomona.cli.bench.load import Load, Target
from pomona.cli.bench.server import ServerCommand

HOST = "127.0.0.1"
ANY_NUMBER = 1_000_000
"""Of prompts that mlx_lm.server may keep where bytes alone are to bound them."""


def clean_environment(inherited: Mapping[str, str], scratch: Path, preload: Mapping[str, str]) -> dict[str, str]:
    """What every contender gets: no POMONA_* of the user, no way to the network, `preload` for the BLAS.

    mlx_lm.server's model list needs a Hugging Face cache folder that exists, so an empty one is made in `scratch`.
    """
    hub = scratch / "hub"
    hub.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in inherited.items() if not name.startswith("POMONA_")}
    offline = {"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return kept | offline | dict(preload)


def pomona_server(
    folder: Path,
    port: int,
    env: Mapping[str, str],
    home: Path,
    ready_timeout_s: float,
    *,
    config: Path | None = None,
) -> ServerCommand:
    """Pomona as it comes, with a home of its own and an empty cache; no configuration file but `config`."""
    home.mkdir(parents=True, exist_ok=True)
    configured = () if config is None else ("--config", str(config))
    return ServerCommand(
        name="pomona",
        argv=(sys.executable, "-m", "pomona", "serve", str(folder), "--host", HOST, "--port", str(port), *configured),
        env={**env, "POMONA_HOME": str(home)},
        ready_url=f"http://{HOST}:{port}/health/ready",
        ready_timeout_s=ready_timeout_s,
    )


def mlx_lm_server(
    folder: Path,
    port: int,
    env: Mapping[str, str],
    ready_timeout_s: float,
    *,
    prompt_cache_bytes: int | None = None,
) -> ServerCommand:
    """mlx_lm.server as it comes, or with so many bytes for the KV of any number of prompts.

    It reports health before its model is loaded, and the warm-up waits for that; 503 means that loading has failed.
    """
    caches: tuple[str, ...] = ()
    if prompt_cache_bytes is not None:
        caches = ("--prompt-cache-size", str(ANY_NUMBER), "--prompt-cache-bytes", str(prompt_cache_bytes))
    where = ("--host", HOST, "--port", str(port))
    return ServerCommand(
        name="mlx_lm.server",
        argv=(sys.executable, "-m", "mlx_lm", "server", "--model", str(folder), *where, *caches),
        env=env,
        ready_url=f"http://{HOST}:{port}/health",
        ready_timeout_s=ready_timeout_s,
        failed_status=503,
    )


def mlx_lm_target(port: int) -> Target:
    """`default_model` is mlx_lm.server's name for the one it was started with."""
    return Target(url=f"http://{HOST}:{port}/v1", model="default_model")


def bare_command(folder: Path, load: Load) -> tuple[str, ...]:
    spec = BareSpec(
        folder=str(folder),
        requests=load.requests,
        warm_ups=1,
        max_tokens=load.max_tokens,
        prompt_words=load.prompt_words,
        seed=load.seed,
    )
    return (sys.executable, "-m", "pomona.cli.bench.bare", msgspec.json.encode(spec).decode())

"""Qwen3.5 models with a prediction head, made so that it is known what the head is to say.

In the model of `known` each token has one successor, whatever came before it: its layers add nothing, and its output
head reads the successor off the last token's embedding. The head of one kind repeats that from the embedding; that of
the other kind needs the hidden state, which its own norms take apart in one way only.
"""

import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.support.tiny_model import build_tiny_model

HIDDEN = 320
"""As many as tokens, so that every token has a direction of its own."""
SKIP = 7
"""Each token's successor is so many ids on."""
ZEROED = ("o_proj.weight", "out_proj.weight", "down_proj.weight")


def after(token: int) -> int:
    return (token + SKIP) % HIDDEN


def orbit(start: int, count: int) -> list[int]:
    """A token and its successors."""
    return [(start + SKIP * index) % HIDDEN for index in range(count)]


def random_pair(folder: Path, seed: int = 0) -> Path:
    """A random model and a random head of the same size."""
    config = {"model_type": "qwen3_5"}
    build_tiny_model(folder, "qwen3_next", seed=seed, config=config)
    donor = build_tiny_model(folder / "donor", "qwen3_next", seed=seed + 1, config=config)
    source = np.random.default_rng(seed)
    size = 64
    projection = source.standard_normal((size, 2 * size)) / size**0.5
    write_head(folder, layer_of(donor), projection, np.ones(size), np.ones(size))
    return folder


def known(
    folder: Path,
    uses: Literal["embedding", "hidden"],
    *,
    first: Literal["embedding", "hidden"] = "embedding",
    hidden: Literal["pre", "post"] = "post",
    centred: bool = False,
    drifts: bool = False,
) -> Path:
    """The pair above; the head's contract is as told, and no other one works for it.

    With `drifts` its guessed hidden states have the wrong sign in a quarter of their channels: good enough to read a
    token off, and too bad to guess from.
    """
    small = {"intermediate_size": 32, "head_dim": 16, "linear_value_head_dim": 16, "linear_key_head_dim": 16}
    build_tiny_model(folder, "qwen3_next", hidden=HIDDEN, layers=2, config={"model_type": "qwen3_5", **small})
    weights = load_file(folder / "model.safetensors")
    source, directions = np.random.default_rng(1), directions_of_tokens()
    norm = source.choice([-1.0, 1.0], HIDDEN) * source.uniform(0.3, 2.0, HIDDEN)
    successors = [after(token) for token in range(HIDDEN)]
    reader = np.zeros((HIDDEN, HIDDEN))
    reader[successors] = directions / norm / 8
    for name, value in weights.items():
        if name.endswith(ZEROED):
            value[:] = 0
    weights["language_model.model.embed_tokens.weight"] = directions
    weights["language_model.model.norm.weight"] = norm
    weights["language_model.lm_head.weight"] = reader
    save(folder / "model.safetensors", weights)
    layer = {name: value * (not name.endswith(ZEROED)) for name, value in layer_of(folder).items()}
    nothing, projection = np.zeros((HIDDEN, HIDDEN)), np.eye(HIDDEN)
    if uses == "hidden":
        taken_apart = np.diag(1 / norm) if hidden == "post" else np.eye(HIDDEN)
        projection = directions[successors].T @ directions @ taken_apart
    halves = [projection, nothing] if uses == first else [nothing, projection]
    signs = source.choice([-1.0, 1.0], HIDDEN, p=[0.25, 0.75]) if drifts else np.ones(HIDDEN)
    write_head(folder, layer, np.hstack(halves), norm * signs, np.ones(HIDDEN), centred=centred)
    return folder


@cache
def directions_of_tokens() -> np.ndarray:
    """[tokens, hidden]: orthogonal, and as long as hidden states are."""
    return np.linalg.qr(np.random.default_rng(2).standard_normal((HIDDEN, HIDDEN)))[0] * HIDDEN**0.5


def layer_of(folder: Path) -> dict[str, np.ndarray]:
    """The weights of a layer with full attention."""
    prefix = "language_model.model.layers.1."
    weights = load_file(folder / "model.safetensors")
    return {f"layers.0.{name.removeprefix(prefix)}": value for name, value in weights.items() if prefix in name}


def write_head(
    folder: Path,
    layer: Mapping[str, np.ndarray],
    projection: np.ndarray,
    norm: np.ndarray,
    ones: np.ndarray,
    *,
    centred: bool = False,
) -> None:
    head: dict[str, Any] = {
        **layer,
        "fc.weight": projection,
        "norm.weight": norm,
        "pre_fc_norm_embedding.weight": ones,
        "pre_fc_norm_hidden.weight": ones,
    }
    named = {f"mtp.{name}": value - (centred and value.ndim == 1) for name, value in head.items()}
    save(folder / "model-mtp.safetensors", named)


def save(path: Path, weights: Mapping[str, np.ndarray]) -> None:
    save_file({name: np.ascontiguousarray(value, np.float32) for name, value in weights.items()}, path)


def any_tokens(seed: int, count: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, HIDDEN) for _ in range(count)]

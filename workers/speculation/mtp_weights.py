"""The weights of a model's own prediction head, which mlx-lm leaves out when it loads the model."""

import re
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx

from pomona.workers.models.error import ModelError, first_line

_NAME = re.compile(r"(?:^|\.)mtp\.(.+)$")
_EXPERT = re.compile(r"(.*\.mlp)\.experts\.(\d+)\.(\w+)\.(\w+)$")
SHARED = ("embed_tokens.", "lm_head.", "shared_head.")
"""Copies of what the head has from the model."""


def read_mtp_weights(folder: Path) -> dict[str, mx.array]:
    """By their names behind `mtp.`, as the modules of mlx-lm call them; empty where the folder has none.

    They are not read before they are used. Raises ModelError for a file that cannot be read.
    """
    found: dict[str, mx.array] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            weights = mx.load(str(file))
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"{file} cannot be read ({first_line(error)}); fetch it again") from error
        for name, array in weights.items():  # type: ignore[union-attr]  # a mapping for this format
            if (match := _NAME.search(name)) and not match[1].startswith(SHARED):
                found[match[1]] = array
    return _with_joined_experts(found)


def _with_joined_experts(weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Experts in one array a projection, however the file holds them."""
    joined: dict[str, mx.array] = {}
    apart: dict[str, dict[int, mx.array]] = {}
    for name, array in weights.items():
        if match := _EXPERT.match(name):
            block, number, projection, kind = match.groups()
            apart.setdefault(f"{block}.switch_mlp.{projection}.{kind}", {})[int(number)] = array
        elif name.endswith(".experts.gate_up_proj"):
            block, half = name.removesuffix(".experts.gate_up_proj"), array.shape[-2] // 2
            joined[f"{block}.switch_mlp.gate_proj.weight"] = array[..., :half, :]
            joined[f"{block}.switch_mlp.up_proj.weight"] = array[..., half:, :]
        elif name.endswith(".experts.down_proj"):
            joined[f"{name.removesuffix('.experts.down_proj')}.switch_mlp.down_proj.weight"] = array
        else:
            joined[name] = array
    for name, experts in apart.items():
        joined[name] = mx.stack([experts[number] for number in sorted(experts)])
    return joined

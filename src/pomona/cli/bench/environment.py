"""What the figures of a comparison were measured on."""

import os
import platform
import struct
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import msgspec

from pomona.cli.bench.answer import shorten
from pomona.cli.bench.comparison import Environment
from pomona.cli.bench.problem import BenchError
from pomona.cli.mlx_probe import probe_mlx

HALF = {"BF16", "F16"}


class _Tensor(msgspec.Struct):
    dtype: str = ""


def describe(folder: Path, env: Mapping[str, str]) -> Environment:
    """What contenders with the environment `env` run on; raises BenchError if MLX or the weights cannot be read."""
    probe = probe_mlx(env)
    if probe.error:
        raise BenchError(f"MLX does not work here ({shorten(probe.error)}): see `pomona doctor`")
    weights = weight_types(folder)
    return Environment(
        pomona=version("pomona"),
        mlx_lm=version("mlx-lm"),
        mlx=probe.version,
        python=platform.python_version(),
        platform=platform.platform(),
        cpus=os.cpu_count() or 1,
        device=probe.device,
        blas=env.get("LD_PRELOAD"),
        model=folder.name,
        weights=weights,
        notes=notes(probe.device, weights),
    )


def notes(device: str, weights: str) -> tuple[str, ...]:
    """Where Pomona and mlx_lm would not compute in the same data type."""
    if "cpu" in device and HALF & set(weights.split(", ")):
        return (
            f"weights are {weights}: Pomona computes in float32 on a CPU, mlx_lm in what is stored, which is slower",
        )
    return ()


def weight_types(folder: Path) -> str:
    """The data types in the folder's safetensors headers, such as `F32` or `BF16, U32`."""
    types: set[str] = set()
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = msgspec.json.decode(stream.read(min(length, file.stat().st_size)), type=dict[str, _Tensor])
        except (OSError, struct.error, msgspec.DecodeError) as error:
            raise BenchError(f"{file}: not readable as safetensors ({error}): import the model again") from error
        types |= {tensor.dtype for tensor in header.values() if tensor.dtype}
    if not types:
        raise BenchError(f"{folder}: no safetensors weights there: name a model folder, or `pomona models import` one")
    return ", ".join(sorted(types))

"""What the figures of a comparison were measured on."""

import os
import platform
import struct
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import msgspec

from pomona.cli.bench.comparison import Environment
from pomona.cli.bench.problem import BenchError


class _Tensor(msgspec.Struct):
    dtype: str = ""


def describe(folder: Path, preload: Mapping[str, str]) -> Environment:
    """Raises BenchError if `folder` holds no readable weights."""
    return Environment(
        pomona=version("pomona"),
        mlx_lm=version("mlx-lm"),
        mlx=version("mlx"),
        python=platform.python_version(),
        platform=platform.platform(),
        cpus=os.cpu_count() or 1,
        blas=preload.get("LD_PRELOAD"),
        model=folder.name,
        weights=weight_types(folder),
    )


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

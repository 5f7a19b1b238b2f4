"""The environment that gives MLX a fast BLAS on Linux; on a Mac nothing is needed.

MLX for Linux links the reference BLAS. A faster library that is loaded before it takes over its symbols.
"""

import ctypes.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SMALL = 32 << 20
"""Bytes of weights below which a model's products are too short to share among threads."""


class FastBlas(NamedTuple):
    name: str
    """`mkl` or `openblas`."""
    library: str
    """A path, or a name that the dynamic linker finds."""


def find(prefix: Path | None = None, platform: str = sys.platform) -> FastBlas | None:
    """The fastest BLAS that MLX can be given here; None on a Mac, or where there is none.

    `prefix` is the root of the Python environment, in whose `lib` folder the `mkl` package puts its libraries.
    """
    if platform != "linux":
        return None
    folder = (prefix or Path(sys.prefix)) / "lib"
    found = sorted(folder.glob("libmkl_rt.so.*"), key=_version)
    if found:
        return FastBlas("mkl", str(found[-1]))
    openblas = ctypes.util.find_library("openblas")
    return FastBlas("openblas", openblas) if openblas is not None else None


def _version(library: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in library.name.partition(".so.")[2].split(".") if part.isdigit())


def environment(
    blas: FastBlas | None, current: Mapping[str, str] = os.environ, *, weights: int | None = None
) -> dict[str, str]:
    """What a worker's environment gets so that MLX uses `blas`; variables that the user has set stay as they are.

    `weights` are the bytes of its model.
    """
    if blas is None:
        return {}
    return _preload(blas, current) | (_threads(blas, current) if weights is not None and weights < SMALL else {})


def _preload(blas: FastBlas, current: Mapping[str, str]) -> dict[str, str]:
    preloaded = current.get("LD_PRELOAD", "")
    if blas.library in preloaded.replace(" ", ":").split(":"):
        return {}
    return {"LD_PRELOAD": f"{blas.library}:{preloaded}" if preloaded else blas.library}


def _threads(blas: FastBlas, current: Mapping[str, str]) -> dict[str, str]:
    """One thread: several would spin between short products, on cores that the other processes need."""
    own = f"{blas.name.upper()}_NUM_THREADS"
    return {} if own in current or "OMP_NUM_THREADS" in current else {own: "1"}

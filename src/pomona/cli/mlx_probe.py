"""What MLX says about itself, asked in a process of its own: this one never imports it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

TIMEOUT_S = 60.0

PROGRAM = """
import json, pathlib
import mlx.core as mx
from importlib.metadata import version
mx.eval(mx.ones((8, 8)) @ mx.ones((8, 8)))
maps = pathlib.Path("/proc/self/maps")
loaded = sorted({line.split()[-1] for line in maps.read_text().splitlines() if ".so" in line}) if maps.exists() else []
found = {"version": version("mlx"), "device": str(mx.default_device()), "metal": mx.metal.is_available()}
print(json.dumps({**found, "libraries": loaded}))
"""


class MlxProbe(msgspec.Struct, frozen=True):
    version: str = ""
    device: str = ""
    """As MLX prints it, such as `Device(gpu, 0)`."""
    metal: bool = False
    libraries: tuple[str, ...] = ()
    """Paths of the shared libraries in its process; empty on a Mac."""
    error: str = ""
    """The last line of what went wrong; the other fields are empty then."""

    def loaded(self, name: str) -> str | None:
        """The file name of the first library whose name starts with `name`."""
        names = (Path(path).name for path in self.libraries)
        return next((library for library in names if library.startswith(name)), None)


def probe_mlx(environment: Mapping[str, str], python: str = sys.executable) -> MlxProbe:
    """Multiplies two small matrices on MLX's default device with `environment` added, as a worker would."""
    try:
        done = subprocess.run(
            [python, "-c", PROGRAM],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return MlxProbe(error=f"it did not answer within {TIMEOUT_S:.0f} s")
    except OSError as error:
        return MlxProbe(error=str(error))
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return MlxProbe(error=lines[-1] if lines else f"its process ended with {done.returncode}")
    return msgspec.json.decode(done.stdout, type=MlxProbe)

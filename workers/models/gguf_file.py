"""A GGUF file: its metadata with types checked, and its tensors."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar, get_args

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from pomona.workers.models.error import ModelError, first_line

Scalar = str | int | float | bool
S = TypeVar("S", str, int, float, bool)


class GgufTensor(NamedTuple):
    """A tensor in its stored form; `shape` is in NumPy order (rows first)."""

    name: str
    shape: tuple[int, ...]
    quantization: str
    stored: NDArray[np.generic]

    def dequantize(self) -> NDArray[np.float32]:
        """float32 values of shape `shape`; raises ModelError for a quantization that the gguf package cannot undo."""
        try:
            values = dequantize(self.stored, gguf.GGMLQuantizationType[self.quantization])
        except NotImplementedError as error:
            raise ModelError(
                f"tensor {self.name} is stored as {self.quantization}, which cannot be read; "
                "use another quantization of this model, such as Q8_0 or Q4_K_M"
            ) from error
        return np.asarray(values, dtype=np.float32).reshape(self.shape)


class GgufFile:
    """Opened by path; raises ModelError if it is not a whole GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
            self.tensors = tuple(self._tensors())
        except FileNotFoundError as error:
            raise ModelError(f"no file at {path}; check the path") from error
        except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
            raise ModelError(f"{path.name} is not a whole GGUF file ({first_line(error)}); fetch it again") from error
        self.architecture = self.get("general.architecture", str)

    def _tensors(self) -> Iterator[GgufTensor]:
        for tensor in self._reader.tensors:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            yield GgufTensor(tensor.name, shape, tensor.tensor_type.name, tensor.data)

    def has(self, key: str) -> bool:
        return self._reader.get_field(key) is not None

    def get(self, key: str, kind: type[S], default: S | None = None) -> S:
        """One value; `{arch}` in the key stands for the architecture. Raises ModelError if missing or misshapen."""
        value = self._contents(key)
        if value is None:
            if default is None:
                raise ModelError(f"{self.path.name} has no metadata {self._key(key)}; convert the model to GGUF anew")
            return default
        if kind is float and isinstance(value, (int, float)):
            value = float(f"{value:.7g}")  # what was meant by a float32: 1e-05, not 9.999999747378752e-06
        if not isinstance(value, kind):
            raise ModelError(f"{self.path.name}: metadata {self._key(key)} is not a {kind.__name__}")
        return value

    def array(self, key: str) -> list[Scalar]:
        """A list of values; empty if the key is missing."""
        value = self._contents(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ModelError(f"{self.path.name}: metadata {self._key(key)} is not a list")
        return value

    def strings(self, key: str) -> list[str]:
        return [str(value) for value in self.array(key)]

    def token_id(self, name: str) -> int | None:
        """The id stored as `tokenizer.ggml.NAME_token_id`, if there is one."""
        key = f"tokenizer.ggml.{name}_token_id"
        return self.get(key, int) if self.has(key) else None

    def _key(self, key: str) -> str:
        return key.replace("{arch}", self.architecture) if "{arch}" in key else key

    def _contents(self, key: str) -> Scalar | list[Scalar] | None:
        field = self._reader.get_field(self._key(key))
        if field is None:
            return None
        value: Scalar | list[Scalar] | None = field.contents()
        if not isinstance(value, (list, *get_args(Scalar))):
            raise ModelError(f"{self.path.name}: metadata {self._key(key)} cannot be read; convert the model anew")
        return value

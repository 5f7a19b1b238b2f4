"""Is a folder a whole model that this installation can load? Without reading the weights, and without MLX."""

import ast
import importlib.metadata
import importlib.util
import json
import math
from functools import cache
from pathlib import Path

from pomona.workers.models.error import ModelError
from pomona.workers.models.settings import read_config, read_json

INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000
"""Bytes that the safetensors format allows for a header."""

WIDTHS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip
"""Bits of one element, by safetensors' names of dtypes."""

TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"), ("tiktoken.model",))
"""Sets of files each of which makes a tokenizer."""


def check(folder: Path) -> None:
    """Raises ModelError naming the first thing that is wrong and the mend."""
    if not folder.exists():
        raise ModelError(f"there is no model folder {folder}; check the path, or see `pomona models list`")
    if not folder.is_dir():
        raise ModelError(f"{folder} is a file, not a model folder; name a folder, or a .gguf file")
    config = read_config(folder)
    check_architecture(folder, config.get("model_type"), custom=config.get("model_file") is not None)
    check_weights(folder)
    check_tokenizer(folder)


def check_architecture(folder: Path, model_type: object, *, custom: bool) -> None:
    """Raises ModelError if mlx-lm has no module for the model type, or if the folder brings its own code."""
    if custom:
        raise ModelError(f"{folder} asks to run its own code (model_file), which is never done; use another conversion")
    if not isinstance(model_type, str) or not model_type:
        raise ModelError(f"{folder / 'config.json'} names no model_type; fetch the model again")
    modules, renamed = architectures()
    if renamed.get(model_type, model_type) not in modules:
        version = importlib.metadata.version("mlx-lm")
        raise ModelError(
            f"{folder.name} is of architecture {model_type!r}, which mlx-lm {version} does not know; "
            "update mlx-lm or choose another model"
        )


@cache
def architectures() -> tuple[frozenset[str], dict[str, str]]:
    """The model modules of mlx-lm, and the model types it serves by another name's module; read, not imported."""
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError("mlx-lm is not installed; run `make setup`")
    package = Path(next(iter(spec.submodule_search_locations)))
    modules = frozenset(path.stem for path in (package / "models").glob("*.py"))
    renamed: dict[str, str] = {}
    for node in ast.parse((package / "utils.py").read_bytes()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(name) for name in node.targets] == ["MODEL_REMAPPING"]:
            renamed = ast.literal_eval(node.value)
    return modules, renamed


def check_weights(folder: Path) -> None:
    """Raises ModelError if shards are missing, none are there, or one is damaged."""
    files = sorted(folder.glob("model*.safetensors"))
    if (folder / INDEX).is_file():
        places = read_json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict):
            raise ModelError(f"{folder / INDEX} has no weight_map; fetch the model again")
        missing = sorted({str(place) for place in places.values()} - {file.name for file in files})
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ModelError(f"{folder} lacks the weight file {missing[0]}{more}; finish the download")
    if not files:
        other = next(iter(sorted([*folder.glob("*.gguf"), *folder.glob("*.bin")])), None)
        hint = f"; it holds {other.name}: " if other else ""
        mend = "name that file instead" if other and other.suffix == ".gguf" else "fetch the model's safetensors"
        raise ModelError(f"{folder} has no weights (model*.safetensors){hint or '; '}{mend}")
    for file in files:
        check_safetensors(file)


def check_safetensors(path: Path) -> None:
    """Raises ModelError if the header cannot be parsed or the file is not exactly as long as it says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise ModelError(f"{path} is cut short or not a safetensors file; fetch it again")
        head = file.read(length)
    end = 0
    try:
        header = json.loads(head)
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            bits = math.prod(entry["shape"]) * WIDTHS.get(entry["dtype"], 8 * (stop - start))
            if entry["dtype"] in WIDTHS and 8 * (stop - start) != bits:
                raise ModelError(f"{path}: tensor {name} has a damaged header entry; fetch the file again")
            end = max(end, stop)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{path} has a damaged header; fetch it again") from error
    if end != size - 8 - length:
        what = "cut short" if end > size - 8 - length else "longer than its header says"
        raise ModelError(f"{path} is {what} ({size} bytes, expected {end + 8 + length}); fetch it again")


def check_tokenizer(folder: Path) -> None:
    """Raises ModelError if no tokenizer is there, or its JSON is unreadable."""
    if not any(all((folder / name).is_file() for name in names) for names in TOKENIZERS):
        raise ModelError(f"{folder} has no tokenizer (tokenizer.json); fetch the model again")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            read_json(folder / name)

"""What a model folder's JSON files say, read without MLX."""

import json
from pathlib import Path

from pomona.workers.models.error import ModelError
from pomona.workers.models.gguf_config import Json

DEFAULT_CONTEXT = 4096
"""Tokens, where a configuration says nothing of the context."""


def read_json(path: Path) -> dict[str, Json]:
    """Raises ModelError if the file is missing or is not a JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} has no {path.name}; fetch the model again") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON ({error}); fetch the model again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object; fetch the model again")
    return value


def read_config(folder: Path) -> dict[str, Json]:
    """config.json, with the entries of a multimodal model's `text_config` where the outer level lacks them."""
    config = read_json(folder / "config.json")
    text = config.get("text_config")
    return {**text, **config} if isinstance(text, dict) else config


def context_length(folder: Path) -> int:
    """Tokens of prompt and answer together that the model was made for."""
    config = read_config(folder)
    for key in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx"):
        value = config.get(key)
        if isinstance(value, int) and value > 0:
            return value
    return DEFAULT_CONTEXT


def eos_token_ids(folder: Path) -> frozenset[int]:
    """The ids that end an answer by generation_config.json and config.json together; the tokenizer may add its own."""
    found: set[int] = set()
    sources = [read_config(folder)]
    if (folder / "generation_config.json").is_file():
        sources.append(read_json(folder / "generation_config.json"))
    for source in sources:
        value = source.get("eos_token_id")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int):
                found.add(item)
    return frozenset(found)

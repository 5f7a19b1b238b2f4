"""The models that are served, as far as the gateway needs them: template, tokeniser, defaults, context."""

import asyncio
import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pomona.config import Config, Method, ModelConfig
from pomona.gateway.errors import ApiError
from pomona.gateway.prompts import Prompts
from pomona.gateway.sampling import Defaults
from pomona.gateway.source import TokenSource
from pomona.scheduler.messages import ModelState

log = logging.getLogger("pomona.gateway")

UNKNOWN_CONTEXT = 4096
"""Tokens, for a model that says nothing about its context and was never loaded."""


class ServedModel:
    def __init__(self, config: ModelConfig, pool: ThreadPoolExecutor) -> None:
        self.id = config.id
        self.prompts = Prompts(config.id, Path(config.path), pool)
        self.defaults = Defaults.of(_read(Path(config.path) / "generation_config.json"))
        self.speculation = config.speculation
        self._own_context = config.max_context or _max_positions(_read(Path(config.path) / "config.json"))

    def context(self, source: TokenSource) -> int:
        """Tokens of prompt and answer together: what a worker said, or the model's own configuration before that."""
        state = self._state(source)
        return (state.context if state else 0) or self._own_context or UNKNOWN_CONTEXT

    def methods(self, source: TokenSource) -> tuple[Method, ...] | None:
        """Methods of speculation that its workers have; None before one of them was ready."""
        state = self._state(source)
        return state.methods if state else None

    def _state(self, source: TokenSource) -> ModelState | None:
        return next((state for state in source.models if state.id == self.id), None)


class Catalog:
    def __init__(self, config: Config) -> None:
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="prompts")
        self.models = {model.id: ServedModel(model, self._pool) for model in config.models}

    def resolve(self, model_id: str) -> ServedModel:
        """Raises ApiError 404, naming what is served."""
        model = self.models.get(model_id)
        if model is None:
            served = ", ".join(self.models) or "none"
            raise ApiError(
                404,
                f"no model {model_id[:200]!r} is served here; served: {served}",
                code="model_not_found",
                param="model",
            )
        return model

    async def warm(self) -> None:
        """Load every tokeniser, so that no client waits for it; a broken one is told to the clients that use it."""
        for model in self.models.values():
            try:
                await model.prompts.load()
            except ApiError as error:
                log.error("tokenizer-failed model=%s reason=%s", model.id, error.message)
            await asyncio.sleep(0)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _read(path: Path) -> Mapping[str, object]:
    """The object in a JSON file; empty where there is none. What is broken in a model is its worker's to report."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _max_positions(config: Mapping[str, object]) -> int:
    nested = config.get("text_config")
    for part in (config, nested if isinstance(nested, dict) else {}):
        value = part.get("max_position_embeddings")
        if isinstance(value, int) and value > 0:
            return value
    return 0

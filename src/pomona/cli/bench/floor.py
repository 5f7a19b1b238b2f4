"""`python -m pomona.cli.bench.floor FOLDER LOADER`: a bare MLX loop, the floor for a server on the same model.

One process, greedy, all rows of a batch from the first step to the last; mlx-lm's model with mlx-lm's own caches. It
reads one `FloorTask` in JSON from each line of standard input and answers with one `FloorRun` on a line of standard
output, until its input ends. LOADER is a `Loader`.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, assert_never

import msgspec

PREFILL_TOKENS = 2048
"""Prompt tokens of each row in one forward, as mlx-lm takes them."""


class Loader(StrEnum):
    MLX_LM = "mlx_lm"
    """mlx_lm.load: the weights as they are stored."""
    POMONA = "pomona"
    """As Pomona's worker loads it: float32 on a CPU, and with its kernels there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorTask:
    prompts: tuple[str, ...]
    """One row for each."""
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorRun:
    steps: tuple[float, ...]
    """Seconds from the start until the tokens of each step were known to the host, one of every row; ascending."""
    prompt_tokens: int
    tokens: tuple[tuple[int, ...], ...]
    """What was chosen: one tuple for each step, one id of every row."""


class Floor:
    """The loaded model. `run` holds all rows at once."""

    def __init__(self, folder: Path, loader: Loader) -> None:
        self._model, self._tokenizer = _load(folder, loader)

    def run(self, task: FloorTask) -> FloorRun:
        """Prefills all prompts together, then decodes; a step is launched before the last one's tokens are read."""
        import mlx.core as mx

        prompts = [self._encode(prompt) for prompt in task.prompts]
        started = time.perf_counter()
        caches = self._prefill(prompts)

        def step(last: mx.array) -> mx.array:
            greatest = mx.argmax(self._model(last[:, None], cache=caches)[:, -1, :], axis=-1)
            mx.async_eval(greatest)
            return greatest

        steps: list[float] = []
        chosen: list[tuple[int, ...]] = []
        tokens = step(mx.array([prompt[-1] for prompt in prompts]))
        for number in range(task.max_tokens):
            following = step(tokens) if number + 1 < task.max_tokens else tokens
            ids: Any = tokens.tolist()
            chosen.append(tuple(ids))
            steps.append(time.perf_counter() - started)
            tokens = following
        return FloorRun(steps=tuple(steps), prompt_tokens=sum(map(len, prompts)), tokens=tuple(chosen))

    def _encode(self, prompt: str) -> list[int]:
        messages = [{"role": "user", "content": prompt}]
        return list(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> list[Any]:
        """Caches that hold all but the last token of each prompt; a single row needs no batch form."""
        import mlx.core as mx
        from mlx_lm.models.cache import make_prompt_cache

        rows = [make_prompt_cache(self._model) for _ in prompts]
        caches = rows[0] if len(rows) == 1 else [type(layer[0]).merge(list(layer)) for layer in zip(*rows, strict=True)]
        lengths = [len(prompt) - 1 for prompt in prompts]
        longest = max(lengths)
        padding = [longest - length for length in lengths]
        if any(padding):
            for cache in caches:
                cache.prepare(lengths=lengths, right_padding=padding)
        padded = mx.array([[*prompt[:-1], *[0] * pad] for prompt, pad in zip(prompts, padding, strict=True)])
        for start in range(0, longest, PREFILL_TOKENS):
            self._model(padded[:, start : start + PREFILL_TOKENS], cache=caches)
            mx.eval([cache.state for cache in caches])
        if any(padding):
            for cache in caches:
                cache.finalize()
            mx.eval([cache.state for cache in caches])
        return caches


def _load(folder: Path, loader: Loader) -> tuple[Any, Any]:
    match loader:
        case Loader.MLX_LM:
            from mlx_lm import load

            model, tokenizer, *_ = load(str(folder))
            return model, tokenizer
        case Loader.POMONA:
            from pomona.workers.models.load import load as load_as_worker

            return load_as_worker(folder)
    assert_never(loader)


def main(folder: str, loader: str) -> None:
    floor = Floor(Path(folder), Loader(loader))
    for line in sys.stdin.buffer:
        run = floor.run(msgspec.json.decode(line, type=FloorTask))
        sys.stdout.buffer.write(msgspec.json.encode(run) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:3])

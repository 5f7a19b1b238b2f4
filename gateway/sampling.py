"""The sampler's fields, the same on every route: ranges, defaults, and what they mean for the worker."""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BeforeValidator, Field

from pomona.gateway.constraint_fields import ConstraintFields
from pomona.gateway.errors import context_too_long, invalid
from pomona.gateway.reasoning import ReasoningFields
from pomona.gateway.speculation import SpeculationFields
from pomona.workers.messages import Limits, Sampling

MAX_STOPS = 64
SEEDS = 2**64

INT32 = 2**31 - 1

XTC_THRESHOLD = 0.1
"""Where a request says nothing, as in mlx-lm; with 0 it would leave out all tokens but the least probable of all."""


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


StopList = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=4096)]], BeforeValidator(_as_list), Field(max_length=MAX_STOPS)
]
"""A string or a list of strings."""


@dataclass(frozen=True)
class Defaults:
    """What a model's generation_config.json says for requests that say nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, generation: Mapping[str, object]) -> Self:
        def number(name: str, default: float, low: float, high: float) -> float:
            value = generation.get(name)
            fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
            return float(value) if fits else default  # type: ignore[arg-type]

        return cls(
            temperature=number("temperature", 1.0, 0, 5),
            top_p=number("top_p", 1.0, 0, 1),
            top_k=int(number("top_k", 0, 0, INT32)),
            min_p=number("min_p", 0.0, 0, 1),
            repetition_penalty=number("repetition_penalty", 1.0, 0.01, 10),
        )


class SamplerFields(ConstraintFields, ReasoningFields):
    """None is "not given"; every explicit value, zero included, is honoured."""

    temperature: float | None = Field(None, ge=0, le=5)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=INT32)
    min_p: float | None = Field(None, ge=0, le=1)
    xtc_probability: float | None = Field(None, ge=0, le=1)
    xtc_threshold: float | None = Field(None, ge=0, le=0.5)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = None
    min_tokens: int | None = Field(None, ge=0, le=INT32)
    ignore_eos: bool | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0, le=INT32)]] | None = Field(None, max_length=1024)
    priority: int | None = Field(None, ge=-INT32, le=INT32)
    cache_salt: str | None = Field(None, max_length=256)
    speculation: SpeculationFields | None = None

    def sampling(self, defaults: Defaults, vocabulary: int) -> Sampling:
        """`vocabulary` is the number of token ids. Raises ApiError for a logit_bias key that is none of them."""

        def given(value: float | None, default: float) -> float:
            return default if value is None else value

        top_k = defaults.top_k if self.top_k is None else max(0, self.top_k)
        return Sampling(
            seed=secrets.randbelow(SEEDS) if self.seed is None else self.seed % SEEDS,
            repeatable=self.seed is not None,
            temperature=given(self.temperature, defaults.temperature),
            top_p=given(self.top_p, defaults.top_p),
            top_k=top_k,
            min_p=given(self.min_p, defaults.min_p),
            xtc_probability=given(self.xtc_probability, 0.0),
            xtc_threshold=given(self.xtc_threshold, XTC_THRESHOLD),
            repetition_penalty=given(self.repetition_penalty, defaults.repetition_penalty),
            presence_penalty=given(self.presence_penalty, 0.0),
            frequency_penalty=given(self.frequency_penalty, 0.0),
            logit_bias=_biases(self.logit_bias or {}, vocabulary),
        )

    def limits(self, max_tokens: int, stop: list[str] | None) -> Limits:
        if (self.min_tokens or 0) > max_tokens:
            raise invalid(
                f"min_tokens {self.min_tokens} is more than the {max_tokens} tokens of max_tokens", "min_tokens"
            )
        return Limits(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens or 0,
            stop=tuple(stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
        )


def _biases(biases: dict[str, float], vocabulary: int) -> dict[int, float]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < vocabulary):
            raise invalid(
                f"logit_bias: {key[:40]!r} is not a token id; ids go from 0 to {vocabulary - 1}",
                f"logit_bias.{key[:40]}",
            )
    return {int(key): float(value) for key, value in biases.items()}


def choice_seed(seed: int, index: int) -> int:
    """Choice 0 keeps the seed, so that it equals the answer to n=1; the others follow from it."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def room(prompt: int, wanted: int | None, context: int, model: str, *, clamp: bool) -> int:
    """How many tokens the answer may have; all counts in tokens.

    `wanted` None is all that the context leaves. More than that is refused, or cut to what is left with `clamp`.
    Raises ApiError.
    """
    left = context - prompt
    if left < 0 or (left == 0 and wanted != 0):
        raise context_too_long(prompt, None, context, model)
    if wanted is None:
        return left
    if wanted > left and not clamp:
        raise context_too_long(prompt, wanted, context, model)
    return min(wanted, left)

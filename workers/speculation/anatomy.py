"""What a model of mlx-lm consists of, and other models made of the same parts: none of its weights is copied.

A copy shares every layer with the model that it was made of, and leaves that model as it is.
"""

import copy
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache

PARTS = ("embed_tokens", "layers", "norm")
PROBE = (0, 1, 2)
"""Tokens that every vocabulary has."""
CLOSE = 1e-3


class Unfit(ValueError):
    """A model cannot be used in this way; the text says why."""


def path_to_trunk(model: Any) -> tuple[str, ...]:
    """The attributes that lead to the module of embedding, layers and final norm. Raises Unfit."""
    found = list(_trunks(model, ())) if isinstance(model, Module) else []
    if len(found) != 1:
        how_many = f"{len(found)} modules" if found else "no module"
        raise Unfit(f"{type(model).__module__} has {how_many} of {', '.join(PARTS)} in front of its head")
    return found[0]


def _trunks(module: Module, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, child in module.items():
        if not isinstance(child, Module):
            continue
        if all(hasattr(child, part) for part in PARTS) and isinstance(child["layers"], list):
            yield (*path, name)
        elif "layers" not in child:
            yield from _trunks(child, (*path, name))


def trunk(model: Any) -> Any:
    """The module of embedding, layers and final norm: tokens [rows, tokens] -> hidden states [rows, tokens, hidden].

    Raises Unfit for a model whose parts are not known.
    """
    part = model
    for name in path_to_trunk(model):
        part = part[name]
    return part


def with_trunk(model: Any, other: Any) -> Any:
    """The model as a copy that has `other` in the place of its trunk. Raises Unfit."""
    path = path_to_trunk(model)
    changed = place = copy.copy(model)
    for name in path[:-1]:
        place[name] = copy.copy(place[name])
        place = place[name]
    place[path[-1]] = other
    return changed


class _Given(Module):
    """Hands on the hidden states that it is called with, in the place of a trunk."""

    def __init__(self, of: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.embed_tokens = of.embed_tokens

    def __call__(self, hidden: mx.array, *_: object, **__: object) -> mx.array:
        return hidden


def head(model: Any) -> Any:
    """All that a model does behind its trunk: hidden states [rows, tokens, hidden] -> logits. Raises Unfit.

    One forward of a few tokens shows that trunk and head together are the model.
    """
    own = trunk(model)
    behind = with_trunk(model, _Given(own))
    probe = mx.array([PROBE], dtype=mx.int32)
    try:
        halves = behind(own(probe, make_prompt_cache(model)))
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise Unfit(f"{type(model).__module__} cannot be cut in front of its head ({error})") from error
    whole = model(probe, cache=make_prompt_cache(model))
    if halves.shape != whole.shape or not mx.allclose(halves, whole, atol=CLOSE, rtol=CLOSE).item():
        raise Unfit(f"{type(model).__module__} computes more than its head behind its layers")
    return behind


class FirstLayers:
    """A model's first layers with its own final norm and head, run on the first ones of the model's own caches."""

    def __init__(self, model: Any, layers: int) -> None:
        """Raises Unfit where the model's parts are not known, or one layer does not stand for one cache."""
        own = trunk(model)
        count = len(own["layers"])
        if not 1 <= layers < count:
            raise Unfit(f"{layers} layers are not a part of {count}")
        short = copy.copy(own)
        short["layers"] = own["layers"][:layers]
        self._model = with_trunk(model, short)
        caches = make_prompt_cache(model)
        self._others = [None] * (len(caches) - layers)
        """In the place of the others' caches, which the model may ask for masks that nothing uses."""
        self.caches = layers
        """So many of the model's caches, the first ones, are these layers'."""
        try:
            mx.eval(self(mx.array([PROBE], dtype=mx.int32), caches[:layers]))
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise Unfit(f"{type(model).__module__} does not run with its first layers alone ({error})") from error
        if len(caches) != count or any(cache.empty() for cache in caches[:layers]):
            raise Unfit(f"{type(model).__module__} does not have one cache for each layer")

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        """Logits [rows, tokens, vocabulary] of int32 [rows, tokens]."""
        logits: mx.array = self._model(inputs, cache=[*cache, *self._others])
        return logits


def logit_width(model: Any) -> int:
    """Entries of the model's logits, which may be more than its tokeniser has tokens."""
    return int(model(mx.array([PROBE[:1]], dtype=mx.int32), cache=make_prompt_cache(model)).shape[-1])

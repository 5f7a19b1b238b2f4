"""A prediction head of the Qwen3-Next and Qwen3.5 layout, and the contract under which it was trained.

From a token's embedding and the hidden state of the token before it the head makes what the model's own hidden state of
that token is to be: one decoder layer behind a projection of the two, with KV of its own.
"""

import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache, make_prompt_cache

from pomona.workers.models.error import ModelError
from pomona.workers.models.load import cast
from pomona.workers.models.settings import read_config
from pomona.workers.speculation.anatomy import Unfit, head, path_to_trunk, trunk
from pomona.workers.speculation.mtp_weights import read_mtp_weights
from pomona.workers.speculation.tap import Hidden, Tap

log = logging.getLogger(__name__)

FAMILIES = ("qwen3_next", "qwen3_5")
"""Modules of mlx-lm whose decoder layer the head has."""
ENOUGH = 128
"""Tokens by which a contract is told."""
MARGIN = 0.05
"""Agreement by which another contract than the layout's must be better to be believed."""


class Contract(NamedTuple):
    """What a head was trained on. A wrong one gives plausible text and drafts that are never accepted."""

    hidden: Literal["pre", "post"] = "post"
    """The model's hidden state in front of its final norm, or behind it."""
    first: Literal["embedding", "hidden"] = "embedding"
    """Which of the two comes first in the projection."""
    centred: bool = False
    """The file's norm weights are offsets from 1."""


class MtpHead(Module):
    """Shares embedding and output head with its model; the contract may be changed until the head is used."""

    def __init__(self, model: Any) -> None:
        """An untrained head for the model. Raises Unfit for a model of another family."""
        super().__init__()  # type: ignore[no-untyped-call]
        own = trunk(model)
        full = next((place for place, layer in enumerate(own["layers"]) if not getattr(layer, "is_linear", True)), None)
        if full is None or type(own).__module__.rpartition(".")[2] not in FAMILIES:
            raise Unfit(f"the prediction head of {type(own).__module__} is of an unknown layout")
        owner = model
        for name in path_to_trunk(model)[:-1]:
            owner = owner[name]
        size, eps = own.norm.weight.shape[0], own.norm.eps
        self.pre_fc_norm_embedding = RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = RMSNorm(size, eps=eps)
        self.fc = Linear(2 * size, size, bias=False)
        self.layers = [type(own["layers"][full])(owner.args, full)]
        self.norm = RMSNorm(size, eps=eps)
        self.contract = Contract()
        self._shared = _Shared(own.embed_tokens, head(model))

    def __call__(self, hidden: mx.array, tokens: mx.array, cache: Any) -> Hidden:
        """[rows, tokens, hidden] of each token's predecessor, and the tokens -> what their own are to be."""
        parts = [self.pre_fc_norm_embedding(self._shared.embed(tokens)), self.pre_fc_norm_hidden(hidden)]
        joined = mx.concatenate(parts if self.contract.first == "embedding" else parts[::-1], axis=-1)
        mixed = self.fc(joined)
        pre = self.layers[0](mixed, mask=create_attention_mask(mixed, cache), cache=cache)
        return Hidden(pre, self.norm(pre))

    def of(self, hidden: Hidden) -> mx.array:
        """The one that the head takes."""
        return hidden.post if self.contract.hidden == "post" else hidden.pre

    def logits(self, hidden: Hidden) -> mx.array:
        """[rows, tokens, vocabulary]."""
        logits: mx.array = self._shared.logits(hidden.post)
        return logits

    def centre(self, centred: bool) -> None:
        """Take the norm weights for offsets from 1, or no longer."""
        if centred != self.contract.centred:
            by = 1.0 if centred else -1.0
            self.load_weights([(name, value + by) for name, value in _norms(self)], strict=False)
            self.contract = self.contract._replace(centred=centred)


class _Shared:
    """What a head has from its model; no part of its own parameters."""

    def __init__(self, embed: Any, logits: Any) -> None:
        self.embed = embed
        self.logits = logits


def _norms(made: Any) -> list[tuple[str, mx.array]]:
    """The weights of a head's norms, by their names."""
    named: Any = tree_flatten(made.parameters())
    return [(name, value) for name, value in named if value.ndim == 1 and "norm" in name]


def load_mtp_head(folder: Path, model: Any) -> MtpHead | None:
    """The head in a model's folder, under the contract of its layout; None where there is none.

    Raises Unfit for a layout that is not known, and ModelError for weights that do not fit it.
    """
    weights = read_mtp_weights(folder)
    if not weights:
        return None
    made = MtpHead(model)
    if any(name.startswith("layers.1.") for name in weights):
        raise Unfit("a prediction head of more than one layer is of an unknown layout")
    _quantize(made, weights, read_config(folder).get("quantization"))
    try:
        made.load_weights(list(weights.items()))
    except ValueError as error:
        raise ModelError(f"the mtp weights of {folder} do not fit its config.json; fetch the model again") from error
    cast(made, trunk(model).norm.weight.dtype)
    made.centre(bool((mx.stack([value.mean() for _, value in _norms(made)]).mean() < 0.5).item()))
    made.eval()
    mx.eval(made.parameters())  # type: ignore[no-untyped-call]
    return made


def _quantize(made: MtpHead, weights: Mapping[str, mx.array], settings: object) -> None:
    if isinstance(settings, dict):
        quantize(
            made,
            group_size=settings["group_size"],
            bits=settings["bits"],
            class_predicate=lambda path, module: hasattr(module, "to_quantized") and f"{path}.scales" in weights,
        )


def agreement(made: MtpHead, heard: Hidden, logits: mx.array, tokens: mx.array) -> float:
    """Share of a text's tokens of which the head guesses the model's own next choice.

    `heard` and `logits` are what the model makes of `tokens`, int32 [1, tokens].
    """
    guessed = made.logits(made(made.of(heard)[:, :-1], tokens[:, 1:], KVCache()))
    same: float = mx.mean(mx.argmax(guessed, axis=-1) == mx.argmax(logits[:, 1:], axis=-1)).item()  # type: ignore[assignment]
    return same


def settle_contract(made: MtpHead, model: Any, text: Sequence[int], name: str) -> float:
    """Give the head the contract under which it agrees best with its model on a text of 3 tokens or more.

    The layout's own is kept unless another is better by far. Returns the agreement, of the first `ENOUGH` tokens.
    """
    text = text[:ENOUGH]
    tap, tokens = Tap(model, widest=len(text)), mx.array([list(text)], dtype=mx.int32)
    logits = tap.model(tokens, cache=make_prompt_cache(model))
    heard = tap.take()
    if heard is None:
        raise Unfit("the model's hidden states cannot be heard")
    expected = made.contract
    found: dict[Contract, float] = {}
    for centred, hidden, first in itertools.product((False, True), ("pre", "post"), ("embedding", "hidden")):
        made.centre(centred)
        made.contract = Contract(hidden, first, centred)  # type: ignore[arg-type]  # product widens the literals
        found[made.contract] = agreement(made, heard, logits, tokens)
    best = max(found, key=lambda contract: found[contract])
    chosen = best if found[best] > found[expected] + MARGIN else expected
    made.centre(chosen.centred)
    made.contract = chosen
    level = logging.INFO if chosen == expected else logging.WARNING
    log.log(level, "mtp-contract model=%s %s agreement=%.3f tokens=%d", name, chosen, found[chosen], len(text) - 1)
    if not found[chosen]:
        log.warning("mtp-useless model=%s: its head agrees with it on none of %d tokens", name, len(text) - 1)
    return found[chosen]

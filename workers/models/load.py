"""A model folder -> the MLX model and its tokenizer. The only module of this package that needs MLX."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pomona.workers.models.check import check
from pomona.workers.models.error import ModelError, first_line
from pomona.workers.models.settings import eos_token_ids

if TYPE_CHECKING:
    import mlx.core as mx
    from mlx.nn.layers.base import Module
    from mlx_lm.tokenizer_utils import TokenizerWrapper

DtypePolicy = Literal["auto", "keep", "float32", "float16", "bfloat16"]
"""`auto`: float32 on a CPU, where the narrow kernels are slow, and the checkpoint's own on a GPU; `keep`: its own."""


def load(folder: Path, *, dtype: DtypePolicy = "auto") -> tuple["Module", "TokenizerWrapper"]:
    """The model, evaluated and in inference mode, and mlx-lm's tokenizer.

    The tokenizer's `eos_token_ids` are those of generation_config.json, config.json and the tokenizer together.
    Quantised weights stay packed whatever the policy. The context length is `settings.context_length(folder)`. Raises
    ModelError for a folder that is not whole or does not fit its own configuration.
    """
    check(folder)
    import mlx.core as mx
    from mlx_lm.utils import load_model

    from pomona.workers.attention import install
    from pomona.workers.models.cpu import speed_up

    try:
        model, _ = load_model(folder, lazy=True)
        install(model)
        if mx.default_device() == mx.cpu:
            speed_up(model)
        target = _target(dtype)
        if target is not None:
            cast(model, target)
        mx.eval(model.parameters())
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OSError) as error:
        raise ModelError(
            f"{folder} cannot be loaded ({first_line(error)}); its weights do not fit its config.json: fetch it again"
        ) from error
    return model, load_tokenizer(folder)


def load_tokenizer(folder: Path) -> "TokenizerWrapper":
    """mlx-lm's tokenizer with every end-of-sequence id; raises ModelError if the files make none."""
    from mlx_lm.utils import load_tokenizer as load_wrapped

    ids = set(eos_token_ids(folder))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers warns of what is none of a server's concern
            tokenizer = load_wrapped(folder, eos_token_ids=sorted(ids) or None)
    except Exception as error:  # the Rust tokenizers raise bare Exception
        raise ModelError(f"the tokenizer of {folder} cannot be loaded ({first_line(error)}); fetch it again") from error
    own = tokenizer.eos_token_id
    tokenizer.eos_token_ids = ids | ({own} if isinstance(own, int) else set())
    return tokenizer


def cast(model: "Module", dtype: "mx.Dtype") -> None:
    """Casts floating parameters in place, except those that the model keeps as they are (its `cast_predicate`)."""
    import mlx.core as mx
    from mlx.utils import tree_map_with_path

    keeps: Any = getattr(model, "cast_predicate", None)

    def convert(name: str, value: "mx.array") -> "mx.array":
        if not mx.issubdtype(value.dtype, mx.floating) or (keeps is not None and not keeps(name)):
            return value
        return value.astype(dtype)

    model.update(tree_map_with_path(convert, model.parameters()))


def _target(policy: DtypePolicy) -> "mx.Dtype | None":
    import mlx.core as mx

    match policy:
        case "auto":
            return mx.float32 if mx.default_device() == mx.cpu else None
        case "keep":
            return None
        case "float32":
            return mx.float32
        case "float16":
            return mx.float16
        case "bfloat16":
            return mx.bfloat16

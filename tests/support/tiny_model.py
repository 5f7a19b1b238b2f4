"""A complete Hugging Face model folder, made on the spot: real architectures, random weights, a real tokenizer.

Nothing is downloaded, and the same arguments give the same bytes.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mlx.utils import tree_flatten
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Token ids 0, 1 and 2; the last ends a turn."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CORPUS = (
    "The orchard keeps its apples through the winter, and the pears beside them.",
    "A request waits, a row joins the batch, and the answer streams token by token.",
    'def plan(state, now):\n    return {"rows": [1, 2, 3], "budget": 0.25}\n',
    "¿Dónde están las manzanas? Où sont les pommes ? Wo sind die Äpfel?",
    "果園のりんごは甘い。蘋果和梨子都在籃子裡。사과나무 아래에서 기다립니다.",
    "Emoji: 🍎🍐👩‍🌾🏽 and flags 🇫🇷, all of them several bytes.",
    "user assistant system tool function name arguments true false null 0123456789",
)

FAMILIES = ("llama", "gemma3_text", "qwen3", "qwen3_next")
"""Plain attention, sliding window, q/k norms, and a hybrid with recurrent state."""


def build_tiny_model(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    vocab: int = 320,
    layers: int | None = None,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    context: int = 2048,
    window: int = 16,
    scale: float = 3.0,
    eos: int | list[int] = 2,
    chat_template: str = CHATML,
    config: Mapping[str, Any] | None = None,
    marks: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> Path:
    """Writes a folder that `mlx_lm.load` takes and returns it.

    `vocab` is at least 259 (all bytes and the special tokens); `layers` is 2, or 4 for the families that mix kinds of
    layers; `window` is the sliding window of gemma3_text; `scale` is the standard deviation of the logits: 1 is close
    to uniform, 10 is close to greedy. `config` overrides entries of config.json. `marks` are further special tokens,
    `tags` tokens that are text and stand for their whole name.
    """
    if family not in FAMILIES:
        raise ValueError(f"no tiny model of family {family!r}; there are {', '.join(FAMILIES)}")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(vocab)
    tokenizer.add_special_tokens(list(marks))
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    size = tokenizer.get_vocab_size()
    settings: dict[str, Any] = {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers or (4 if family in ("gemma3_text", "qwen3_next") else 2),
        "intermediate_size": 2 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": size,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": eos,
        **_extras(family, hidden, heads, window),
        **(config or {}),
    }
    _write_json(folder / "config.json", settings)
    save_file(random_weights(settings, seed, scale), folder / "model.safetensors", metadata={"format": "mlx"})
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "pad_token": "<|im_end|>",
            "additional_special_tokens": [*SPECIALS, *marks],
            "clean_up_tokenization_spaces": False,
            "model_max_length": context,
            "chat_template": chat_template,
        },
    )
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": eos})
    return folder


def train_tokenizer(vocab: int = 320) -> Tokenizer:
    """Byte-level BPE over the corpus above; any text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def random_weights(settings: Mapping[str, Any], seed: int, scale: float) -> dict[str, np.ndarray]:
    """float32 weights under the names and shapes of mlx_lm's own module; hidden states stay near unit size."""
    module = importlib.import_module(f"mlx_lm.models.{settings['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(dict(settings)))
    shapes = {name: np.array(value) for name, value in tree_flatten(model.parameters())}
    if settings["tie_word_embeddings"]:
        shapes.pop("lm_head.weight", None)
    random = np.random.default_rng(seed)
    weights = {}
    for name in sorted(shapes):
        first = shapes[name]
        noise = random.standard_normal(first.shape)
        if name.endswith("A_log"):
            value = np.log(1.0 + np.abs(noise))
        elif name.endswith(".bias"):
            value = 0.1 * noise
        elif first.ndim == 1:
            value = first + 0.1 * noise
        elif name.endswith("embed_tokens.weight"):
            value = noise * (scale / first.shape[-1] ** 0.5 if settings["tie_word_embeddings"] else 1.0)
        elif name.endswith("lm_head.weight"):
            value = noise * scale / first.shape[-1] ** 0.5
        else:
            value = noise / np.prod(first.shape[1:]) ** 0.5
        weights[name] = np.ascontiguousarray(value, dtype=np.float32)
    return weights


def _extras(family: str, hidden: int, heads: int, window: int) -> dict[str, Any]:
    match family:
        case "gemma3_text":
            return {
                "rope_local_base_freq": 10000.0,
                "query_pre_attn_scalar": hidden // heads,
                "sliding_window": window,
                "sliding_window_pattern": 2,
            }
        case "qwen3_next":
            return {
                "linear_num_value_heads": heads,
                "linear_num_key_heads": heads // 2,
                "linear_key_head_dim": hidden // heads,
                "linear_value_head_dim": hidden // heads,
                "linear_conv_kernel_dim": 4,
                "num_experts": 0,
                "num_experts_per_tok": 0,
                "decoder_sparse_step": 1,
                "shared_expert_intermediate_size": hidden,
                "mlp_only_layers": [],
                "moe_intermediate_size": hidden,
                "partial_rotary_factor": 0.5,
                "full_attention_interval": 2,
            }
    return {}


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

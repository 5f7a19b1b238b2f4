"""A model so small that the cost of everything around it shows: a llama of random weights, written on the spot.

Every id that it may choose is a piece of ASCII text, so each step gives its client a delta, and greedy decoding never
chooses the end of a turn, so every answer runs to its `max_tokens`.
"""

import json
import string
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LAYERS = 4
HIDDEN = 128
HEADS = 4
KV_HEADS = 2
CONTEXT = 32_768
LOGIT_DEVIATION = 3.0
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tiny(folder: Path) -> Path:
    """Writes a Hugging Face model folder, the same bytes every time, and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    ids = tokenizer.get_vocab()
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 2 * HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": len(ids),
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2],
        "unk_token": SPECIALS[0],
        "pad_token": SPECIALS[2],
        "additional_special_tokens": list(SPECIALS),
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHATML,
    }
    _write(folder / "tokenizer_config.json", described)
    tokenizer.save(str(folder / "tokenizer.json"))
    choosable = np.array([token.isascii() and token not in SPECIALS for token in sorted(ids, key=ids.__getitem__)])
    save_file(_weights(choosable), folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


def _tokenizer() -> Tokenizer:
    """Byte-level BPE: every byte, and every pair of small letters as one token."""
    letters = string.ascii_lowercase
    pairs = [(first, second) for first in letters for second in letters]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIALS, *alphabet, *(first + second for first, second in pairs)]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def _weights(choosable: np.ndarray) -> dict[str, np.ndarray]:
    """float32 arrays under mlx-lm's names; `choosable`, bool [vocabulary], says which ids may have a logit above 0.

    The greatest of hundreds of normal logits is far above 0, so greedy decoding never takes another id.
    """
    random = np.random.default_rng(0)

    def normal(rows: int, columns: int, deviation: float) -> np.ndarray:
        return np.ascontiguousarray(random.standard_normal((rows, columns)) * deviation, dtype=np.float32)

    head = HIDDEN // HEADS
    shapes = {
        "self_attn.q_proj": (HEADS * head, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * head, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * head, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * head),
        "mlp.gate_proj": (2 * HIDDEN, HIDDEN),
        "mlp.up_proj": (2 * HIDDEN, HIDDEN),
        "mlp.down_proj": (HIDDEN, 2 * HIDDEN),
    }
    ones = np.ones(HIDDEN, dtype=np.float32)
    weights = {"model.embed_tokens.weight": normal(len(choosable), HIDDEN, 1.0), "model.norm.weight": ones}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for part, (rows, columns) in shapes.items():
            weights[f"{name}.{part}.weight"] = normal(rows, columns, columns**-0.5)
        weights[f"{name}.input_layernorm.weight"] = ones
        weights[f"{name}.post_attention_layernorm.weight"] = ones
    head_weight = normal(len(choosable), HIDDEN, LOGIT_DEVIATION * HIDDEN**-0.5)
    weights["lm_head.weight"] = np.where(choosable[:, None], head_weight, np.float32(0))
    return weights


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

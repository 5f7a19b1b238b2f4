"""Tiny GGUF files, written from tiny Hugging Face folders the way converters for llama.cpp write them."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.support.tiny_model import CHATML, SPECIALS

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_gguf(
    model: Path,
    path: Path,
    *,
    architecture: str = "llama",
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    pre: str = "gpt-2",
    tokenizer: str = "gpt2",
    chat_template: str | None = CHATML,
    extra: dict[str, int | float | str] | None = None,
    rope_factors: np.ndarray | None = None,
) -> Path:
    """`extra` is metadata under the architecture's prefix; matrices take `quantization`, vectors stay float32."""
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    for key, value in (extra or {}).items():
        name = f"{architecture}.{key}"
        match value:
            case str():
                writer.add_string(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
    _add_tokenizer(writer, model, pre, tokenizer)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for name, values in load_file(model / "model.safetensors").items():
        _add_tensor(writer, architecture, config, name, values, quantization)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensor(
    writer: gguf.GGUFWriter,
    architecture: str,
    config: dict[str, int],
    name: str,
    values: np.ndarray,
    quantization: gguf.GGMLQuantizationType,
) -> None:
    stem, _, kind = name.rpartition(".")
    names = GEMMA_NAMES if architecture == "gemma3" else NAMES
    if stem in names:
        target = names[stem]
    else:
        _, _, layer, part = stem.split(".", 3)
        target = f"blk.{layer}.{names[part]}"
    if architecture == "llama" and stem.endswith(("q_proj", "k_proj")):
        heads = config["num_attention_heads" if stem.endswith("q_proj") else "num_key_value_heads"]
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
    if architecture == "gemma3" and stem.endswith("norm"):
        values = values + 1
    if values.ndim == 1 or quantization is gguf.GGMLQuantizationType.F32:
        writer.add_tensor(f"{target}.{kind}", values)
    else:
        writer.add_tensor(f"{target}.{kind}", gguf.quants.quantize(values, quantization), raw_dtype=quantization)


def _add_tokenizer(writer: gguf.GGUFWriter, model: Path, pre: str, kind: str) -> None:
    source = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokens = [source.id_to_token(i) for i in range(source.get_vocab_size())]
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    merges = json.loads(source.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)

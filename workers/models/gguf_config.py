"""GGUF metadata -> `config.json`, for the architectures that are known."""

import numpy as np
from numpy.typing import NDArray

from pomona.workers.models.error import ModelError
from pomona.workers.models.gguf_file import GgufFile

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

CLASSES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
"""GGUF architecture -> model_type and class of Hugging Face's configuration."""

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")
"""Control tokens that end an answer even where the metadata names only one end-of-sequence id."""

CONTROL = 3
GEMMA3_27B_LAYERS = 62


def config_from(gguf: GgufFile, dtype: str) -> dict[str, Json]:
    """The entries of config.json; raises ModelError for what the file asks for and this import does not know."""
    if gguf.architecture not in CLASSES:
        raise ModelError(
            f"{gguf.path.name} is of GGUF architecture {gguf.architecture!r}, which this import does not know "
            f"({', '.join(CLASSES)}); use the model's Hugging Face folder"
        )
    if gguf.get("{arch}.expert_count", int, 0) > 0:
        raise ModelError(f"{gguf.path.name} is a mixture of experts; use the model's Hugging Face folder")
    model_type, class_name = CLASSES[gguf.architecture]
    shapes = {tensor.name: tensor.shape for tensor in gguf.tensors}
    if "token_embd.weight" not in shapes:
        raise ModelError(f"{gguf.path.name} has no tensor token_embd.weight; it is not a whole language model")
    hidden = gguf.get("{arch}.embedding_length", int)
    heads = gguf.get("{arch}.attention.head_count", int)
    config: dict[str, Json] = {
        "model_type": model_type,
        "architectures": [class_name],
        "hidden_size": hidden,
        "num_hidden_layers": gguf.get("{arch}.block_count", int),
        "intermediate_size": gguf.get("{arch}.feed_forward_length", int),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.get("{arch}.attention.head_count_kv", int, heads),
        "head_dim": gguf.get("{arch}.attention.key_length", int, hidden // heads),
        "rms_norm_eps": gguf.get("{arch}.attention.layer_norm_rms_epsilon", float),
        "rope_theta": gguf.get("{arch}.rope.freq_base", float, 10000.0),
        "rope_scaling": _rope_scaling(gguf),
        "max_position_embeddings": gguf.get("{arch}.context_length", int),
        "vocab_size": shapes["token_embd.weight"][0],
        "tie_word_embeddings": "output.weight" not in shapes,
        "torch_dtype": dtype,
        "bos_token_id": gguf.token_id("bos"),
        "eos_token_id": list[Json](end_ids(gguf)),
    }
    if gguf.architecture == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in shapes
    if gguf.architecture == "gemma3":
        config |= _gemma3(gguf, hidden, heads)
    return config


def end_ids(gguf: GgufFile) -> list[int]:
    """Every token that ends an answer: what the metadata names, and control tokens known as ends of a turn."""
    named = [gguf.token_id(name) for name in ("eos", "eot", "eom")]
    typed = zip(gguf.strings("tokenizer.ggml.tokens"), gguf.array("tokenizer.ggml.token_type"), strict=False)
    known = [i for i, (token, kind) in enumerate(typed) if kind == CONTROL and token in END_OF_TURN]
    return sorted({*known, *(i for i in named if i is not None)})


def _gemma3(gguf: GgufFile, hidden: int, heads: int) -> dict[str, Json]:
    head_dim = gguf.get("{arch}.attention.key_length", int)
    # Gemma 3 27B alone scales queries by the width per head; no metadata says so.
    large = gguf.get("{arch}.block_count", int) == GEMMA3_27B_LAYERS
    return {
        "sliding_window": gguf.get("{arch}.attention.sliding_window", int),
        "sliding_window_pattern": 6,
        "rope_theta": gguf.get("{arch}.rope.freq_base", float, 1_000_000.0),
        "rope_local_base_freq": gguf.get("{arch}.rope.freq_base_swa", float, 10000.0),
        "query_pre_attn_scalar": hidden // heads if large else head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _rope_scaling(gguf: GgufFile) -> Json:
    factors = next((tensor for tensor in gguf.tensors if tensor.name == "rope_freqs.weight"), None)
    if factors is not None:
        return _llama3_scaling(gguf, factors.dequantize())
    kind = gguf.get("{arch}.rope.scaling.type", str, "none")
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": gguf.get("{arch}.rope.scaling.factor", float)}
    raise ModelError(
        f"{gguf.path.name} scales its positions by {kind!r}, which this import does not know; "
        "use the model's Hugging Face folder"
    )


def _llama3_scaling(gguf: GgufFile, factors: NDArray[np.float32]) -> Json:
    """Llama 3's scaling law from the per-frequency factors that GGUF stores in its place."""
    scaling: dict[str, float] = {
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta = gguf.get("{arch}.rope.freq_base", float, 10000.0)
    if not np.allclose(llama3_factors(scaling, theta, factors.size), factors, rtol=1e-3):
        raise ModelError(f"{gguf.path.name} has rope factors of an unknown law; use the model's Hugging Face folder")
    return {"rope_type": "llama3", **scaling}


def llama3_factors(scaling: dict[str, float], theta: float, count: int) -> NDArray[np.float64]:
    """By how much each of `count` rotary frequencies is slowed (Llama 3.1 model card, "RoPE scaling")."""
    wavelength = 2 * np.pi * theta ** (np.arange(count) / count)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (scaling["original_max_position_embeddings"] / wavelength - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)
    factors: NDArray[np.float64] = 1.0 / ((1.0 - smooth) / scaling["factor"] + smooth)
    return factors

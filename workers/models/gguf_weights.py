"""GGUF tensors -> Hugging Face names, order and values, streamed into one safetensors file."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pomona.workers.models.error import ModelError
from pomona.workers.models.gguf_file import GgufFile, GgufTensor

Dtype = Literal["float32", "float16", "bfloat16"]
Progress = Callable[[int, int, str], None]
"""Called with what is done, what there is in all (both in bytes), and a text for people."""

STORED = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_LAYER = {
    **LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
SKIPPED = ("rope_freqs.weight",)
"""Tensors whose content goes into config.json."""


def hf_name(architecture: str, name: str) -> str:
    """The Hugging Face name of a GGUF tensor; raises ModelError for an unknown one."""
    stem, _, kind = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{kind}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    layer = GEMMA_LAYER if architecture == "gemma3" else LAYER
    if match is None or match[2] not in layer:
        raise ModelError(
            f"no place for GGUF tensor {name} in architecture {architecture!r}; use the Hugging Face folder"
        )
    return f"model.layers.{match[1]}.{layer[match[2]]}.{kind}"


def hf_values(gguf: GgufFile, tensor: GgufTensor) -> NDArray[np.float32]:
    """The tensor's values in Hugging Face's order.

    The llama family stores the rows of Q and K in the order of interleaved rotation; Hugging Face and mlx-lm rotate
    halves. Gemma stores its norms with the one added that the model adds again.
    """
    values = tensor.dequantize()
    if gguf.architecture == "llama" and re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", tensor.name):
        heads = gguf.get("llama.attention.head_count", int)
        if ".attn_k." in tensor.name:
            heads = gguf.get("llama.attention.head_count_kv", int, heads)
        return deinterleave(values, heads)
    if gguf.architecture == "gemma3" and tensor.name.endswith("norm.weight"):
        return values - np.float32(1.0)
    return values


def deinterleave(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows 0, 2, 4, … of each head, then rows 1, 3, 5, …; shape (heads * head_dim, …) stays."""
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def to_bytes(values: NDArray[np.float32], dtype: Dtype) -> bytes:
    """Little-endian bytes; bfloat16 rounds to nearest, ties to even."""
    match dtype:
        case "float32":
            return values.astype("<f4").tobytes()
        case "float16":
            return values.astype("<f2").tobytes()
        case "bfloat16":
            bits = values.astype("<f4").view("<u4")
            rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
            return (rounded >> np.uint32(16)).astype("<u2").tobytes()


def write_weights(gguf: GgufFile, path: Path, dtype: Dtype, progress: Progress) -> str:
    """Writes `path`, one tensor in memory at a time, and returns the SHA-256 of its content in hex."""
    code, width = STORED[dtype]
    tensors = [tensor for tensor in gguf.tensors if tensor.name not in SKIPPED]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    total = 0
    for tensor in tensors:
        size = int(np.prod(tensor.shape)) * width
        header[hf_name(gguf.architecture, tensor.name)] = {
            "dtype": code,
            "shape": list(tensor.shape),
            "data_offsets": [total, total + size],
        }
        total += size
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    digest = hashlib.sha256()
    done = 0
    with path.open("wb") as file:

        def put(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        put(len(head).to_bytes(8, "little") + head)
        for tensor in tensors:
            data = to_bytes(hf_values(gguf, tensor), dtype)
            put(data)
            done += len(data)
            progress(done, total, "converting weights")
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()

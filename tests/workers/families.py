"""Tiny random models of every family of caches that mlx-lm has, in memory."""

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import QuantizedKVCache

from tests.support.tiny_model import random_weights
from tests.workers.engines import tiny

HIDDEN = 64

ATTENTION = {
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def _gemma3(window: int) -> dict[str, Any]:
    return {
        **ATTENTION,
        "model_type": "gemma3_text",
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 16,
        "sliding_window": window,
        "sliding_window_pattern": 2,
    }


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {**ATTENTION, "model_type": "llama", "num_hidden_layers": 2},
    "quantized": {
        **ATTENTION,
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
    },
    "narrow window": _gemma3(10),
    "wide window": _gemma3(40),
    "chunked": {
        **ATTENTION,
        "model_type": "llama4",
        "text_config": {
            **ATTENTION,
            "model_type": "llama4_text",
            "attention_bias": False,
            "attention_chunk_size": 24,
            "hidden_act": "silu",
            "interleave_moe_layer_step": 5,
            "intermediate_size_mlp": HIDDEN,
            "num_experts_per_tok": 1,
            "num_local_experts": 2,
            "rope_scaling": None,
            "use_qk_norm": True,
        },
    },
    "recurrent": {
        "model_type": "mamba2",
        "num_heads": 4,
        "head_dim": 32,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "state_size": 8,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": (0.0, float("inf")),
        "time_step_rank": "auto",
    },
    "hybrid": {
        **ATTENTION,
        "model_type": "qwen3_next",
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 0,
        "num_experts_per_tok": 0,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": HIDDEN,
        "mlp_only_layers": [],
        "moe_intermediate_size": HIDDEN,
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
    },
    "list": {
        **ATTENTION,
        "model_type": "falcon_h1",
        "num_hidden_layers": 2,
        "mamba_d_ssm": HIDDEN,
        "mamba_d_head": 16,
        "mamba_n_heads": 4,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
    },
}

OTHERS: dict[str, dict[str, Any]] = {
    "attention first": {
        **ATTENTION,
        "model_type": "lfm2",
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": HIDDEN,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["full_attention", "conv", "full_attention", "conv"],
    },
    "sinks": {
        **ATTENTION,
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "shared": {
        "model_type": "gemma3n",
        "tie_word_embeddings": False,
        "text_config": {
            **ATTENTION,
            "model_type": "gemma3n_text",
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 320,
            "sliding_window": 12,
            "rope_local_base_freq": 10000.0,
            "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.0] * 6,
            "hidden_size_per_layer_input": 16,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
        },
    },
    "sparse": {
        **ATTENTION,
        "model_type": "deepseek_v32",
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "index_head_dim": 16,
        "index_n_heads": 4,
        "index_topk": 24,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    },
    "padding in its state": {
        **ATTENTION,
        "model_type": "nemotron_h",
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 8,
        "conv_kernel": 4,
        "n_groups": 1,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "*", "-", "M"],
        "time_step_limit": [0.0, 100.0],
    },
    "state without lengths": {
        "model_type": "mamba",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "state_size": 8,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
        "tie_word_embeddings": False,
    },
}
"""More families, of kinds of caches that are among those above."""

STATEFUL = tuple(name for name in SETTINGS if name not in ("plain", "quantized"))


class QuantizedCaches:
    """A model that asks for quantised KV."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def make_cache(self) -> list[Any]:
        return [QuantizedKVCache(group_size=32, bits=8) for _ in self._model.layers]

    def __call__(self, inputs: mx.array, cache: list[Any]) -> Any:
        return self._model(inputs, cache=cache)


@cache
def model_of(family: str) -> Any:
    """A float32 model over the vocabulary of `tiny()`."""
    size = len(tiny().vocabulary)
    settings = {**(SETTINGS | OTHERS)[family], "vocab_size": size}
    if "text_config" in settings:
        settings["text_config"] = {**settings["text_config"], "vocab_size": size}
    model = _build(settings)
    return QuantizedCaches(model) if family == "quantized" else model


def _build(settings: Mapping[str, Any]) -> Any:
    module = importlib.import_module(f"mlx_lm.models.{settings['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(dict(settings)))
    model.load_weights([(name, mx.array(value)) for name, value in random_weights(settings, 0, 3.0).items()])
    mx.eval(model.parameters())
    return model

"""mlx-lm's models on a CPU, where MLX computes every `exp` slowly, one number after the other.

SwiGLU takes one for each hidden unit, a fifth of a prompt's forward, and attention one for each pair of tokens. The
same values out of powers of two cost half.
"""

import math
from functools import partial

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models import activations

from pomona.workers.models.substitute import substitute

LOG2_E = 1 / math.log(2)
LEAST = -1e30
"""A score that weighs nothing."""


@partial(mx.compile, shapeless=True)
def _float32_swiglu(gate: mx.array, x: mx.array) -> mx.array:
    return gate / (1 + mx.power(2.0, gate * -LOG2_E)) * x


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """`silu(gate) * x`, of any one shape, within a few units in the last place of mlx-lm's own in float32."""
    return _float32_swiglu(gate, x) if gate.dtype == mx.float32 else activations.swiglu(gate, x)


@partial(mx.compile, shapeless=True)
def _power_of_two(scores: mx.array, greatest: mx.array) -> mx.array:
    return mx.power(2.0, scores - greatest)


def attention(
    queries: mx.array, keys: mx.array, values: mx.array, *, scale: float, mask: mx.array | str | None
) -> mx.array:
    """What `mx.fast.scaled_dot_product_attention` computes, out of powers of two.

    Queries [rows, heads, tokens, head_dim], keys and values [rows, kv heads, reach, head_dim]; `mask` is boolean or
    additive and broadcasts to [rows, heads, tokens, reach], "causal", or None.
    """
    rows, heads, tokens, size = queries.shape
    kv_heads, reach = keys.shape[1:3]
    shared = heads // kv_heads
    grouped = (queries * (scale * LOG2_E)).reshape(rows, kv_heads, shared * tokens, size)
    scores = (grouped @ keys.swapaxes(-1, -2)).reshape(rows, heads, tokens, reach)
    if isinstance(mask, str):
        mask = mx.arange(reach) <= mx.arange(reach - tokens, reach)[:, None]
    if mask is not None and mask.dtype == mx.bool_:
        scores = mx.where(mask, scores, LEAST)
    elif mask is not None:
        scores = scores + mask * LOG2_E
    weights = _power_of_two(scores, scores.max(axis=-1, keepdims=True))
    mixed = weights.reshape(rows, kv_heads, shared * tokens, reach) @ values
    return mixed.reshape(rows, heads, tokens, values.shape[-1]) / weights.sum(axis=-1, keepdims=True)


def speed_up(model: Module) -> None:
    """Give `model`'s layers the faster SwiGLU."""
    substitute(model, "swiglu", activations.swiglu, swiglu)

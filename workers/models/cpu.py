"""mlx-lm's models on a CPU, where MLX computes every `exp` slowly, one number after the other.

SwiGLU takes one for each hidden unit, a fifth of a prompt's forward. The same value out of a power of two costs less
than half.
"""

import math
import sys
from functools import partial

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models import activations


@partial(mx.compile, shapeless=True)
def _float32_swiglu(gate: mx.array, x: mx.array) -> mx.array:
    return gate / (1 + mx.power(2.0, gate * (-1 / math.log(2)))) * x


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """`silu(gate) * x`, of any one shape, within a few units in the last place of mlx-lm's own in float32."""
    return _float32_swiglu(gate, x) if gate.dtype == mx.float32 else activations.swiglu(gate, x)


def speed_up(model: Module) -> None:
    """Give the modules that define `model`'s layers the faster SwiGLU, for all models of this process."""
    for name in {type(layer).__module__ for layer in model.modules()}:
        module = sys.modules[name]
        if getattr(module, "swiglu", None) is activations.swiglu:
            module.swiglu = swiglu  # type: ignore[attr-defined]  # looked up at each call
